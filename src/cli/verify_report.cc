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

std::string token_text(const TokenCheck& check, bool colours) {
  const bool exact = check.exact();
  std::string text = fmt::format(
      "    token-exact {}: {} of {} rows, {} of {} requests, accepted paths {}",
      exact ? paint("yes", Colour::green, colours) : paint("NO", Colour::red, colours), check.exact_rows,
      check.rows, check.exact_requests, check.requests, check.path_difference ? "differ" : "equal");
  if (check.smallest_gap) text += fmt::format("; smallest top-two gap {:.2e}", *check.smallest_gap);
  text += "\n";
  for (const auto& [row, recorded] : check.mismatches) {
    text += fmt::format("      request {} node {}: token {}, recorded {}", row.request, row.node, row.token,
                        recorded);
    text += row.sampled ? "; sampled\n" : fmt::format("; top-two gap {:.2e}\n", row.gap);
  }
  const auto hidden = check.rows - check.exact_rows - static_cast<int64_t>(check.mismatches.size());
  if (hidden > 0) text += fmt::format("      and {} more, see --show\n", hidden);
  if (check.path_difference) text += fmt::format("      accepted path: {}\n", *check.path_difference);
  return text;
}

std::string backend_text(const BackendReport& backend, bool colours) {
  if (backend.error) {
    return fmt::format("  {:<17} {}  {}\n", backend.name,
                       backend.passed_over ? "not supported" : paint("can't", Colour::red, colours),
                       backend.error->message);
  }
  const Comparison& c = backend.comparison;
  std::string text =
      fmt::format("  {:<17} {}  out: max abs {:.2e}, relative {:.2e}; lse: max abs {:.2e}; tolerance {:g}\n",
                  backend.name, verdict(c.passed(), colours), c.max_abs_error, c.relative_error,
                  c.max_lse_error, c.tolerance);
  if (!c.passed()) text += fmt::format("    {} of {} rows differ\n", c.mismatching_rows, c.rows);
  for (const RowMismatch& mismatch : c.mismatches)
    text += mismatch_text(mismatch);
  const auto hidden = c.mismatching_rows - static_cast<int64_t>(c.mismatches.size());
  if (hidden > 0) text += fmt::format("      and {} more, see --show\n", hidden);
  if (backend.tokens) text += token_text(*backend.tokens, colours);
  return text;
}

nlohmann::ordered_json token_json(const TokenCheck& check) {
  nlohmann::ordered_json json;
  json["exact"] = check.exact();
  json["rows"] = check.rows;
  json["exact_rows"] = check.exact_rows;
  json["requests"] = check.requests;
  json["exact_requests"] = check.exact_requests;
  if (check.path_difference) json["path_difference"] = *check.path_difference;
  if (check.smallest_gap) json["smallest_gap"] = *check.smallest_gap;
  json["mismatches"] = nlohmann::ordered_json::array();
  for (const auto& [row, recorded] : check.mismatches) {
    nlohmann::ordered_json mismatch{
        {"request", row.request}, {"node", row.node}, {"got", row.token}, {"recorded", recorded}};
    if (!row.sampled) mismatch["gap"] = row.gap;
    json["mismatches"].push_back(std::move(mismatch));
  }
  return json;
}

nlohmann::ordered_json backend_json(const BackendReport& backend) {
  nlohmann::ordered_json json;
  json["name"] = backend.name;
  if (backend.error) {
    json["status"] = backend.passed_over ? "not supported" : "error";
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
  if (backend.tokens) json["tokens"] = token_json(*backend.tokens);
  return json;
}

}  // namespace

bool BundleReport::mismatched() const {
  return acceptance_difference.has_value() || std::ranges::any_of(backends, [](const BackendReport& backend) {
           if (backend.tokens && !backend.tokens->exact()) return true;
           return !backend.error && !backend.comparison.passed();
         });
}

bool BundleReport::token_exact() const {
  return !backends.empty() && std::ranges::all_of(backends, [](const BackendReport& backend) {
    return backend.passed_over || (backend.tokens && backend.tokens->exact());
  });
}

void BundleReport::pass_over_unsupported() {
  if (std::ranges::all_of(backends, [](const BackendReport& backend) { return backend.error.has_value(); }))
    return;
  for (BackendReport& backend : backends)
    backend.passed_over = backend.error && backend.error->code == KDTREE_UNSUPPORTED;
}

const Error* BundleReport::first_error() const {
  if (error) return &*error;
  for (const BackendReport& backend : backends) {
    if (backend.error && !backend.passed_over) return &*backend.error;
  }
  return nullptr;
}

std::string report_text(const BundleReport& report, bool colours) {
  std::string text = paint(report.file, Colour::bold, colours);
  if (!report.shape.empty()) text += ": " + report.shape;
  text += "\n";
  for (const BackendReport& backend : report.backends)
    text += backend_text(backend, colours);
  if (!report.automatic.empty()) text += fmt::format("  {:<17} {}\n", "auto, on CUDA", report.automatic);
  if (report.acceptance_checked) {
    text += fmt::format("  {:<17} {}", "acceptance", verdict(!report.acceptance_difference, colours));
    if (report.acceptance_difference) text += "  " + *report.acceptance_difference;
    text += "\n";
  }
  if (!report.tokens_unchecked.empty())
    text += fmt::format("  {:<17} not checked ({})\n", "tokens", report.tokens_unchecked);
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
  if (!report.automatic.empty()) json["auto_cuda"] = report.automatic;
  if (report.acceptance_checked) {
    json["acceptance"]["status"] = report.acceptance_difference ? "fail" : "pass";
    if (report.acceptance_difference) json["acceptance"]["difference"] = *report.acceptance_difference;
  }
  if (!report.tokens_unchecked.empty())
    json["tokens"] = fmt::format("not checked ({})", report.tokens_unchecked);
  return json;
}

}  // namespace kdtree::cli
