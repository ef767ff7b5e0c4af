#include "cli/tree_svg.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

namespace kdtree::cli {
namespace {

// Pixels.
constexpr double kMargin = 28;
constexpr double kHeader = 104;  // title, summary and column names
constexpr double kFooter = 62;   // legend
constexpr double kColumn = 138;
constexpr double kRow = 46;
constexpr double kNodeWidth = 82;
constexpr double kNodeHeight = 34;
constexpr double kWidestEdge = 14;
constexpr double kLeastWidth = 740;  // the legend's

constexpr const char* kStyle =
    "text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe "
    "UI',Helvetica,Arial,sans-serif;fill:#1d2733}"
    ".title{font-size:19px;font-weight:600}"
    ".note{font-size:12.5px;fill:#5c6b7a}"
    ".column{font-size:11.5px;fill:#7d8a97;text-anchor:middle}"
    ".token{font-size:13px;font-weight:600;text-anchor:middle}"
    ".prob{font-size:10.5px;fill:#53616e;text-anchor:middle}"
    ".edge{fill:none;stroke:#b7c6d8;stroke-linecap:round}"
    ".edge.on{stroke:#0f9f6e}"
    ".node{stroke:#93a8be;stroke-width:1.2}"
    ".node.on{fill:#d3f5e4;stroke:#0b8158;stroke-width:2.4}"
    ".guide{stroke:#e3e8ee;stroke-dasharray:2 5}";

struct Layout {
  std::vector<double> x;  // left edge of each node
  std::vector<double> y;  // middle of each node
  double width = 0;
  double height = 0;
};

// Leaves take one row each in depth-first order; a parent sits midway between its first and last child.
// Subtrees own disjoint rows, so nothing overlaps.
Layout lay_out(const TreeReport& report) {
  const auto children = report.children();
  const size_t nodes = report.tree.token.size();
  Layout layout{std::vector<double>(nodes), std::vector<double>(nodes), 0, 0};
  double rows = 0;
  std::vector<int32_t> stack = {0};
  while (!stack.empty()) {
    const auto node = static_cast<size_t>(stack.back());
    stack.pop_back();
    layout.x[node] = kMargin + kColumn * report.tree.depth[node];
    if (children[node].empty()) layout.y[node] = kHeader + kRow * (rows++ + 0.5);
    stack.insert(stack.end(), children[node].rbegin(), children[node].rend());
  }
  for (size_t node = nodes; node-- > 0;) {  // children have larger numbers
    if (children[node].empty()) continue;
    layout.y[node] = 0.5 * (layout.y[static_cast<size_t>(children[node].front())] +
                            layout.y[static_cast<size_t>(children[node].back())]);
  }
  layout.width = std::max(kLeastWidth, 2 * kMargin + kColumn * report.depth() + kNodeWidth);
  layout.height = kHeader + kRow * rows + kFooter;
  return layout;
}

std::string escape(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        // XML 1.0 allows no other control characters, not even escaped.
        if (static_cast<unsigned char>(c) >= 0x20) safe += c;
    }
  }
  return safe;
}

// The accepted path stays visible where it was improbable.
double edge_width(double probability, bool accepted) {
  return std::max(accepted ? 3.0 : 0.8, kWidestEdge * probability);
}

// Faint to strong blue.
std::string node_colour(double probability) {
  const auto mix = [&](double faint, double strong) {
    return static_cast<int>(std::lround(faint + (strong - faint) * probability));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0xf4, 0xa9), mix(0xf7, 0xcd), mix(0xfb, 0xf5));
}

std::string edge(const TreeReport& report, const Layout& layout, size_t node, bool on) {
  const auto parent = static_cast<size_t>(report.tree.parent[node]);
  const double x0 = layout.x[parent] + kNodeWidth;
  const double x1 = layout.x[node];
  const double middle = 0.5 * (x0 + x1);
  return fmt::format(
      R"(<path class="edge{}" stroke-width="{:.2f}" d="M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}"/>)"
      "\n",
      on ? " on" : "", edge_width(report.path_probability(static_cast<int64_t>(node)), on), x0,
      layout.y[parent], middle, layout.y[parent], middle, layout.y[node], x1, layout.y[node]);
}

std::string box(const TreeReport& report, const Layout& layout, size_t node, bool on) {
  const auto number = static_cast<int64_t>(node);
  const double path = report.path_probability(number);
  const double x = layout.x[node];
  const double y = layout.y[node];
  const double middle = x + kNodeWidth / 2;
  std::string text = fmt::format(
      "<g><title>node {}: token {}, probability {:.4f}, path {:.4f}{}</title>"
      R"(<rect class="node{}" x="{:.1f}" y="{:.1f}" width="{}" height="{}" rx="9"{}/>)",
      node, report.tree.token[node], report.probability(number), path, on ? ", accepted" : "",
      on ? " on" : "", x, y - kNodeHeight / 2, kNodeWidth, kNodeHeight,
      on ? "" : fmt::format(R"( fill="{}")", node_colour(path)));
  text += fmt::format(R"(<text class="token" x="{:.1f}" y="{:.1f}">{}</text>)", middle, y - 2,
                      report.tree.token[node]);
  text += fmt::format(R"(<text class="prob" x="{:.1f}" y="{:.1f}">{}</text></g>)"
                      "\n",
                      middle, y + 11.5,
                      node == 0 ? "root" : fmt::format("{:.1f} %", 100 * report.probability(number)));
  return text;
}

std::string header(const TreeReport& report, const Layout& layout) {
  std::string text = fmt::format(R"(<text class="title" x="{}" y="38">Draft tree</text>)"
                                 R"(<text class="note" x="{}" y="60">{}</text>)"
                                 "\n",
                                 kMargin, kMargin, escape(report.summary()));
  for (int32_t depth = 0; depth <= report.depth(); ++depth) {
    const double x = kMargin + kColumn * depth + kNodeWidth / 2;
    text += fmt::format(R"(<text class="column" x="{:.1f}" y="90">{}</text>)"
                        R"(<line class="guide" x1="{:.1f}" y1="98" x2="{:.1f}" y2="{:.1f}"/>)"
                        "\n",
                        x, depth == 0 ? "committed" : fmt::format("position +{}", depth), x, x,
                        layout.height - kFooter + 4);
  }
  return text;
}

std::string legend(const TreeReport& report, const Layout& layout) {
  const double y = layout.height - 26;
  double x = kMargin;
  std::string text;
  for (const double probability : {0.1, 0.4, 0.8}) {
    text += fmt::format(R"(<path class="edge" stroke-width="{:.2f}" d="M{:.1f} {:.1f}h26"/>)",
                        edge_width(probability, false), x + 8, y - 4);
    x += 44;
  }
  text += fmt::format(R"(<text class="note" x="{:.1f}" y="{:.1f}">path probability 0.1, 0.4, 0.8</text>)",
                      x + 4, y);
  x += 212;
  text += fmt::format(
      R"(<text class="note" x="{:.1f}" y="{:.1f}">node: token, probability given its parent</text>)", x, y);
  x += 276;
  if (!report.path.empty()) {
    text += fmt::format(
        R"(<path class="edge on" stroke-width="5" d="M{:.1f} {:.1f}h26"/><text class="note" x="{:.1f}" y="{:.1f}">accepted</text>)",
        x, y - 4, x + 38, y);
  }
  return text + "\n";
}

}  // namespace

std::string tree_svg(const TreeReport& report) {
  const Layout layout = lay_out(report);
  const std::vector<bool> accepted = report.accepted();
  const size_t nodes = report.tree.token.size();
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">)"
      "\n<title>Draft tree: {2}</title>\n<style>{3}</style>\n"
      R"(<rect x="0.5" y="0.5" width="{4:.0f}" height="{5:.0f}" rx="14" fill="#fcfdfe" stroke="#d5dde5"/>)"
      "\n",
      layout.width, layout.height, escape(report.summary()), kStyle, layout.width - 1, layout.height - 1);
  svg += header(report, layout);
  // The accepted path over the other edges, nodes over both.
  for (const bool on : {false, true}) {
    for (size_t node = 1; node < nodes; ++node) {
      if (accepted[node] == on) svg += edge(report, layout, node, on);
    }
  }
  for (size_t node = 0; node < nodes; ++node)
    svg += box(report, layout, node, accepted[node]);
  return svg + legend(report, layout) + "</svg>\n";
}

}  // namespace kdtree::cli
