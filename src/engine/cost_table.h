// What a round costs on this machine, measured: the base of choosing how many nodes to verify.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "model/drafter.h"
#include "model/target_model.h"

namespace kdtree {

struct CostTable {
  std::vector<int64_t> rows;                   // ascending, from 1
  std::vector<int64_t> contexts;               // two, ascending
  std::vector<std::vector<double>> verify_us;  // [contexts][rows]
  std::vector<int64_t> requests;               // ascending, from 1
  std::vector<int64_t> depths;                 // ascending: positions that may be drafted
  std::vector<std::vector<double>> draft_us;   // [depths][requests] the drafter's pass

  // Microseconds of a forward pass over `row_count` rows behind prefixes of `context` tokens: between
  // measured points linear, beyond the last one in proportion.
  double verify(int64_t row_count, double context) const;
  double draft(int64_t request_count, int64_t depth) const;

  // Runs the models for a second or two: the least of a few passes a point, rows until no tree could pay.
  // Errors: those of the models.
  static Result<CostTable> measure(TargetModel& target, Drafter* drafter, int64_t most_rows);

  // visit(name, member) for each member of a table, const or not: what files and reports hold.
  template <class Table, class Visit>
  static void for_each_field(Table& table, const Visit& visit) {
    visit("rows", table.rows);
    visit("contexts", table.contexts);
    visit("verify_us", table.verify_us);
    visit("requests", table.requests);
    visit("depths", table.depths);
    visit("draft_us", table.draft_us);
  }

  // Kept in a file, with the text that says what was measured on what. Errors: KDTREE_IO_ERROR,
  // KDTREE_INVALID_FILE.
  Status save(const std::string& path, const std::string& key) const;
  // KDTREE_INVALID_FILE too when the file is about something else than `key`.
  static Result<CostTable> load(const std::string& path, const std::string& key);
};

}  // namespace kdtree
