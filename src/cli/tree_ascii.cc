#include "cli/tree_ascii.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "cli/output.h"

namespace kdtree::cli {
namespace {

struct Strokes {
  const char* branch;
  const char* last;
  const char* through;
  const char* mark;
};

constexpr Strokes kAscii = {"|- ", "`- ", "|  ", "*"};
constexpr Strokes kUtf8 = {"├─ ", "└─ ", "│  ", "●"};

struct Line {
  int32_t node;
  std::string indent;  // the strokes before the token
};

// Depth first, without recursion: a tree may be thousands of nodes deep.
std::vector<Line> lines_of(const TreeReport& report, const Strokes& strokes) {
  const auto children = report.children();
  struct Pending {
    int32_t node;
    std::string indent;  // of the node's own line
    std::string below;   // of its children's lines, before their stroke
  };
  std::vector<Line> lines;
  std::vector<Pending> stack = {{0, "", ""}};
  while (!stack.empty()) {
    const Pending item = std::move(stack.back());
    stack.pop_back();
    lines.push_back({item.node, item.indent});
    const auto& list = children[static_cast<size_t>(item.node)];
    for (size_t i = list.size(); i-- > 0;) {
      const bool last = i + 1 == list.size();
      stack.push_back({list[i], item.below + (last ? strokes.last : strokes.branch),
                       item.below + (last ? "   " : strokes.through)});
    }
  }
  return lines;
}

// Three columns a level, whatever bytes its strokes take.
size_t width_of(const TreeReport& report, const Line& line) {
  const auto node = static_cast<size_t>(line.node);
  return 3 * static_cast<size_t>(report.tree.depth[node]) +
         fmt::formatted_size("{}", report.tree.token[node]);
}

}  // namespace

std::string tree_ascii(const TreeReport& report, const TextStyle& style) {
  const Strokes& strokes = style.utf8 ? kUtf8 : kAscii;
  const std::vector<Line> lines = lines_of(report, strokes);
  const std::vector<bool> accepted = report.accepted();
  size_t width = 5;
  for (const Line& line : lines)
    width = std::max(width, width_of(report, line));

  std::string text = fmt::format("{}: {} positions, vocabulary {}, top {}\n\n", report.source,
                                 report.positions, report.vocab, report.top_k);
  text += paint(fmt::format("  {:<{}}  {:>6}  {:>6}", "token", width, "prob", "path"), Colour::dim,
                style.colours);
  text += "\n";
  for (const Line& line : lines) {
    const auto node = static_cast<size_t>(line.node);
    const bool marked = accepted[node];
    const std::string row = fmt::format("{}{}{:{}}  {:>6.4f}  {:>6.4f}", line.indent, report.tree.token[node],
                                        "", width - width_of(report, line), report.probability(line.node),
                                        report.path_probability(line.node));
    text += fmt::format("{} {}\n", marked ? strokes.mark : " ",
                        paint(row, marked ? Colour::green : Colour::none, style.colours));
  }
  text += fmt::format("\n{}\n", paint(report.summary(), Colour::bold, style.colours));
  if (!report.path.empty()) {
    text += fmt::format("{} accepted path; emitted {} (the last is the target's bonus token)\n", strokes.mark,
                        fmt::join(report.emitted, " "));
  }
  return text;
}

}  // namespace kdtree::cli
