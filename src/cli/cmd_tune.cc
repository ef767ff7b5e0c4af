// kdtree tune: measures what rounds cost on this machine, for --nodes auto.
#include <memory>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/model_session.h"
#include "cli/output.h"

namespace kdtree::cli {
namespace {

struct TuneOptions {
  ModelOptions model;
  bool json = false;
};

Result<int> run(const TuneOptions& options) {
  auto session = ModelSession::load(options.model);
  KDTREE_RETURN_IF_ERROR(session);
  ModelSession& models = **session;
  const auto table = CostTable::measure(models.target(), models.drafter(), kMostAutoNodes);
  KDTREE_RETURN_IF_ERROR(table);
  const TuneFile file = tune_file(models);
  KDTREE_RETURN_IF_ERROR(table->save(file.path, file.key));
  if (options.json) {
    nlohmann::ordered_json json{{"file", file.path}, {"key", file.key}};
    CostTable::for_each_field(*table, [&](const char* name, const auto& field) { json[name] = field; });
    print_out("{}\n", json.dump(2));
    return kExitOk;
  }
  print_out("{}\n{}\n\n", file.path, file.key);
  print_out("{:>6}  {:>14}  {:>14}\n", "rows", fmt::format("at {} tokens", table->contexts[0]),
            fmt::format("at {} tokens", table->contexts[1]));
  for (size_t i = 0; i < table->rows.size(); ++i) {
    print_out("{:>6}  {:>11.0f} us  {:>11.0f} us\n", table->rows[i], table->verify_us[0][i],
              table->verify_us[1][i]);
  }
  for (size_t d = 0; d < table->depths.size(); ++d) {
    for (size_t i = 0; i < table->requests.size(); ++i)
      print_out("draft of {} positions for {} request{}: {:.0f} us\n", table->depths[d], table->requests[i],
                table->requests[i] == 1 ? "" : "s", table->draft_us[d][i]);
  }
  return kExitOk;
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command =
      app.add_subcommand("tune", "Measure what rounds cost here, and keep it for generate --nodes auto");
  add_model_options(*command, options->model);
  add_products_option(*command, options->model);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
