#include "cli/verify_report.h"

#include <algorithm>

#include "cli/output.h"

namespace kdtree::cli {
namespace {

std::string mismatch_text(const RowMismatch& m) {
  return fmt::format("      request {} node {} head {}: {} is {:.9g}, expected {:.9g}\n", m.request, m.node,
                     m.head, m.in_lse ? "lse" : fmt::format("out[{}]", m.index), m.got, m.expected);
}

std::string verdict(bool passed, bool colours) {
  return passed ? paint("pass", Colour::green, colours) : paint("FAIL", Colour::red, colours);
}

std::string backend_text(const BackendReport& backend, bool colours) {
  if (backend.error) {
    return fmt::format("  {:<17} {}  {}\n", backend.name, paint("can't", Colour::red, colours),
                       backend.error->message);
  }
  const Comparison& c = backend.comparison;
  std::string text =
      fmt::format("  {:<17} {}  out: max abs {:.2e}, relative {:.2e}; lse: max abs {:.2e}; tolerance {:g}\n",
                  backend.name, verdict(c.passed(), colours), c.max_abs_error, c.relative_error,
                  c.max_lse_error, c.tolerance);
  if (c.passed()) return text;
  text += fmt::format("    {} of {} rows differ\n", c.mismatching_rows, c.rows);
  for (const RowMismatch& mismatch : c.mismatches)
    text += mismatch_text(mismatch);
  const auto hidden = c.mismatching_rows - static_cast<int64_t>(c.mismatches.size());
  if (hidden > 0) text += fmt::format("      and {} more, see --show\n", hidden);
  return text;
}

nlohmann::ordered_json backend_json(const BackendReport& backend) {
  nlohmann::ordered_json json;
  json["name"] = backend.name;
  if (backend.error) {
    json["status"] = "error";
    json["reason"] = backend.error->message;
    return json;
  }
  const Comparison& c = backend.comparison;
  json["status"] = c.passed() ? "pass" : "fail";
  json["max_abs_error"] = c.max_abs_error;
  json["relative_error"] = c.relative_error;
  json["max_lse_error"] = c.max_lse_error;
  json["tolerance"] = c.tolerance;
  json["rows"] = c.rows;
  json["mismatching_rows"] = c.mismatching_rows;
  json["mismatches"] = nlohmann::ordered_json::array();
  for (const RowMismatch& m : c.mismatches) {
    json["mismatches"].push_back({{"request", m.request},
                                  {"node", m.node},
                                  {"head", m.head},
                                  {"field", m.in_lse ? "lse" : "out"},
                                  {"index", m.index},
                                  {"got", m.got},
                                  {"expected", m.expected}});
  }
  return json;
}

}  // namespace

bool BundleReport::mismatched() const {
  return acceptance_difference.has_value() || std::ranges::any_of(backends, [](const BackendReport& backend) {
           return !backend.error && !backend.comparison.passed();
         });
}

const Error* BundleReport::first_error() const {
  if (error) return &*error;
  for (const BackendReport& backend : backends) {
    if (backend.error) return &*backend.error;
  }
  return nullptr;
}

std::string report_text(const BundleReport& report, bool colours) {
  std::string text = paint(report.file, Colour::bold, colours);
  if (!report.shape.empty()) text += ": " + report.shape;
  text += "\n";
  for (const BackendReport& backend : report.backends)
    text += backend_text(backend, colours);
  if (report.acceptance_checked) {
    text += fmt::format("  {:<17} {}", "acceptance", verdict(!report.acceptance_difference, colours));
    if (report.acceptance_difference) text += "  " + *report.acceptance_difference;
    text += "\n";
  }
  return text;
}

nlohmann::ordered_json report_json(const BundleReport& report) {
  nlohmann::ordered_json json;
  json["file"] = report.file;
  json["passed"] = !report.mismatched() && report.first_error() == nullptr;
  if (report.error) json["error"] = report.error->message;
  json["backends"] = nlohmann::ordered_json::array();
  for (const BackendReport& backend : report.backends)
    json["backends"].push_back(backend_json(backend));
  if (report.acceptance_checked) {
    json["acceptance"]["status"] = report.acceptance_difference ? "fail" : "pass";
    if (report.acceptance_difference) json["acceptance"]["difference"] = *report.acceptance_difference;
  }
  return json;
}

}  // namespace kdtree::cli
