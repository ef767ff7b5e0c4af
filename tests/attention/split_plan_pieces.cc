// Prints the pieces of batches, for the test of bench/cycle_model.py, whose plan is its own: a line "item
// block tiles whole" a piece, and "end" behind each batch. Batches come as lines "heads blocks plan prefix
// nodes...", with one prefix for all requests.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "attention/split_plan.h"

using kdtree::SplitPlan;

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream in(text);
    SplitPlan plan{};
    int64_t prefix = 0;
    in >> plan.heads >> plan.blocks >> plan.plan >> prefix;
    std::vector<SplitPlan::Request> requests;
    for (int64_t nodes = 0; in >> nodes;)
      requests.push_back({prefix, nodes});
    SplitPlan::Line line{};
    for (const SplitPlan::Request& r : requests)
      SplitPlan::add(line, plan.cut(r));
    const int64_t stretch = plan.stretch(line);
    int64_t item = 0;
    int64_t number = 0;
    for (const SplitPlan::Request& r : requests) {
      const SplitPlan::Cut cut = plan.cut(r);
      for (int64_t row_tile = 0; row_tile < cut.row_tiles; ++row_tile, ++number, item += cut.units) {
        const int64_t tiles = plan.key_tiles(r, row_tile);
        for (int64_t position = item; position < item + cut.units;) {
          const int64_t block = position / stretch;
          const int64_t end = plan.piece_end(position, item + cut.units, (block + 1) * stretch);
          const SplitPlan::Piece piece = plan.piece(cut, tiles, item, position, end, block);
          if (!piece.empty())
            std::cout << number << ' ' << block << ' ' << piece.end - piece.first << ' ' << piece.whole
                      << '\n';
          position = end;
        }
      }
    }
    std::cout << "end\n";
  }
}
