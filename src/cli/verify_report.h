// What `kdtree verify` found, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/compare.h"
#include "cli/token_check.h"
#include "core/status.h"

namespace kdtree::cli {

struct BackendReport {
  std::string name;
  std::optional<Error> error;  // it could not run, and why
  bool passed_over = false;    // that error is no failure: nobody named the backend, and another one ran
  Comparison comparison;
  std::optional<TokenCheck> tokens;
};

struct BundleReport {
  std::string file;
  std::string shape;           // "2 requests, 33 rows, ..."
  std::optional<Error> error;  // the bundle could not be read or run
  std::vector<BackendReport> backends;
  std::string automatic;  // what KDTREE_BACKEND_AUTO runs on the device; empty where nothing ran there
  bool acceptance_checked = false;
  std::optional<std::string> acceptance_difference;
  std::string tokens_unchecked;  // why; empty where they are, and where there is nothing that says more

  bool token_exact() const;  // with every result, of which there is one
  bool mismatched() const;
  // Backends that nobody named and that lack the problem's sizes or types are passed over, if any other ran.
  void pass_over_unsupported();
  // The error to exit with when nothing mismatched: the bundle's, or a backend's.
  const Error* first_error() const;
};

std::string report_text(const BundleReport& report, bool colours);
// Numbers that are no numbers (NaN, infinities) become null.
nlohmann::ordered_json report_json(const BundleReport& report);

}  // namespace kdtree::cli
