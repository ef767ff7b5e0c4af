// The subcommands. Each adds its options to the parser and, when chosen, sets what main is to run.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "core/status.h"

namespace kdtree::cli {

// Answers the exit code, or an error that main prints.
using Action = std::function<Result<int>()>;

void add_info(CLI::App& app, Action& action);
void add_tree(CLI::App& app, Action& action);
void add_make_case(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_capture(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);

}  // namespace kdtree::cli
