#include "cli/report/charts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/ranges.h>

#include "cli/report/html.h"

namespace kdtree::cli {
namespace {

constexpr size_t kMostTableRounds = 1000;
constexpr size_t kMostPoints = 400;

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : 0.0;
}

double ratio(int64_t part, int64_t whole) {
  return ratio(static_cast<double>(part), static_cast<double>(whole));
}

// A table's cell with a bar; `behind` is a paler one that it stands before.
std::string bar(double share, double behind = 0.0) {
  std::string html = R"(<td class="bar"><span>)";
  if (behind > 0.0) html += fmt::format(R"(<i class="pale" style="width:{:.1f}%"></i>)", 100 * behind);
  if (share > 0.0) html += fmt::format(R"(<i style="width:{:.1f}%"></i>)", 100 * share);
  return html + "</span></td>";
}

std::string head(const std::string& caption, std::initializer_list<const char*> columns) {
  std::string html = fmt::format("<table><caption>{}</caption><thead><tr>", caption);
  for (const char* column : columns)
    html += fmt::format(R"(<th scope="col">{}</th>)", column);
  return html + "</tr></thead><tbody>";
}

using Stages = std::array<std::pair<const char*, double>, 7>;

// The stages of all rounds, and what of the run's time belongs to none.
Stages stages(const ReportRun& run) {
  const StageTimes& t = run.times;
  const double other = std::max(0.0, run.wall_seconds - t.prefill - t.rounds());
  return {{{"draft", t.draft},
           {"build", t.build},
           {"compile", t.compile},
           {"verify", t.verify},
           {"accept", t.accept},
           {"commit", t.commit},
           {"other", other}}};
}

double total(const Stages& stages) {
  double sum = 0.0;
  for (const auto& [name, seconds] : stages)
    sum += seconds;
  return sum;
}

// The smallest of 1, 2, 5 times a power of ten that cuts `most` into at most `parts`.
double tick(double most, int parts) {
  const double power = std::pow(10.0, std::floor(std::log10(most / parts)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power * parts >= most * (1 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

const char* mode_title(const std::string& mode) {
  return mode == "tree" ? "draft trees" : mode == "chain" ? "draft chains" : "plain decoding";
}

std::string duration(double seconds) {
  if (seconds >= 1.0) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return fmt::format("{:.3g} µs", 1e6 * seconds);
}

std::string rate(double per_second) {
  return per_second >= 1000.0 ? fmt::format("{:.0f}", per_second) : fmt::format("{:.4g}", per_second);
}

std::string comparison_table(const std::vector<ReportRun>& runs) {
  const ReportRun& baseline = baseline_run(runs);
  double best = 0.0;
  for (const ReportRun& run : runs)
    best = std::max(best, run.tokens_per_second());
  const bool several = runs.size() > 1;
  std::string html = fmt::format(
      "<div class=\"wide\"><table class=\"compare\"><caption>{}</caption><thead><tr><th "
      "scope=\"col\">mode</th>"
      "<th scope=\"col\">tokens/s</th><th scope=\"col\" class=\"bar\">relative</th>{}"
      "<th scope=\"col\">accept length</th><th scope=\"col\">rounds</th>"
      "<th scope=\"col\">nodes/round</th><th scope=\"col\">decoding</th></tr></thead><tbody>",
      several ? "The same prompts and the same tokens in every mode" : "Speed",
      several ? "<th scope=\"col\">speedup</th>" : "");
  for (const ReportRun& run : runs) {
    html += fmt::format("<tr{}><th scope=\"row\">{}<small>{}</small></th><td>{}</td>{}",
                        several && &run == &shown_run(runs) ? " class=\"main\"" : "", escape_html(run.mode),
                        mode_title(run.mode), rate(run.tokens_per_second()),
                        bar(ratio(run.tokens_per_second(), best)));
    if (several) html += fmt::format("<td><strong>{:.2f}×</strong></td>", speedup(run, baseline));
    html +=
        fmt::format("<td>{:.2f}</td><td>{}</td><td>{:.1f}</td><td>{}</td></tr>", run.accept_length(),
                    run.stats.rounds, ratio(run.stats.nodes, run.stats.rounds), duration(run.times.rounds()));
  }
  return html + "</tbody></table></div>";
}

std::string progress_chart(const std::vector<ReportRun>& runs) {
  constexpr int kLeft = 52, kRight = 692, kTop = 28, kBottom = 236;
  double seconds = 0.0;
  int64_t tokens = 0;
  for (const ReportRun& run : runs) {
    seconds = std::max(seconds, run.times.rounds());
    tokens = std::max(tokens, run.stats.emitted);
  }
  if (seconds <= 0.0 || tokens == 0) return "";
  const auto x = [&](double s) { return std::lround(kLeft + (kRight - kLeft) * s / seconds); };
  const auto y = [&](double n) {
    return std::lround(kBottom - (kBottom - kTop) * n / static_cast<double>(tokens));
  };
  std::string label = "Tokens over time of decoding.";
  for (const ReportRun& run : runs)
    label += fmt::format(" {}: {} tokens in {}.", run.mode, run.stats.emitted, duration(run.times.rounds()));
  std::string svg = fmt::format(
      R"(<div class="wide"><svg class="chart" viewBox="0 0 720 276" role="img" aria-label="{}"><g class="axis">)",
      label);
  const double step = std::max(1.0, tick(static_cast<double>(tokens), 5));
  for (int i = 0; step * i <= static_cast<double>(tokens); ++i)
    svg += fmt::format(R"(<path d="M{} {}H{}"/><text x="{}" y="{}" class="end">{:.0f}</text>)", kLeft,
                       y(step * i), kRight, kLeft - 8, y(step * i) + 4, step * i);
  const double width = tick(seconds, 6);
  for (int i = 0; width * i <= seconds * (1 + 1e-9); ++i)
    svg += fmt::format(R"(<text x="{}" y="{}" class="mid">{}</text>)", x(width * i), kBottom + 18,
                       i == 0 ? "0" : duration(width * i));
  svg += fmt::format(
      R"(<text x="{}" y="270" class="mid">time of decoding</text><text x="14" y="125" class="mid turned">tokens</text></g>)",
      (kLeft + kRight) / 2);
  std::vector<long> ends;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& rounds = runs[i].rounds;
    const size_t every = rounds.size() / kMostPoints + 1;
    int64_t count = 0;
    std::string path = fmt::format("M{} {}", x(0), y(0));
    for (size_t r = 0; r < rounds.size(); ++r) {
      count += static_cast<int64_t>(rounds[r].emitted.size());
      if (r % every == 0) path += fmt::format("L{} {}", x(rounds[r].seconds), y(static_cast<double>(count)));
    }
    const auto end_x = x(runs[i].times.rounds());
    const auto end_y = y(static_cast<double>(runs[i].stats.emitted));
    path += fmt::format("L{} {}", end_x, end_y);
    // Its name above its end, unless another's stands there.
    const bool free =
        std::none_of(ends.begin(), ends.end(), [&](long end) { return std::abs(end - end_x) < 48; });
    if (free) {
      svg += fmt::format(R"(<text x="{}" y="{}" class="mid">{}</text>)", end_x, end_y - 12,
                         escape_html(runs[i].mode));
    }
    ends.push_back(end_x);
    svg += fmt::format(R"(<path class="line l{0}" d="{1}"/><circle class="l{0}" cx="{2}" cy="{3}" r="5"/>)",
                       i, path, end_x, end_y);
  }
  svg += "</svg></div><ul class=\"legend\">";
  for (size_t i = 0; i < runs.size(); ++i)
    svg += fmt::format(
        R"(<li><svg viewBox="0 0 40 10" aria-hidden="true"><path class="line l{}" d="M1 5H39"/></svg>{}, {}</li>)",
        i, escape_html(runs[i].mode), duration(runs[i].times.rounds()));
  return svg + "</ul>";
}

std::string stage_bars(const std::vector<ReportRun>& runs) {
  double longest = 0.0;
  std::vector<Stages> per_token;
  for (const ReportRun& run : runs) {
    per_token.push_back(stages(run));
    for (auto& [name, seconds] : per_token.back())
      seconds = ratio(seconds, static_cast<double>(run.stats.emitted));
    longest = std::max(longest, total(per_token.back()));
  }
  std::string html = "<div class=\"stacks\">";
  for (size_t i = 0; i < runs.size(); ++i) {
    const Stages& parts = per_token[i];
    std::string said;
    std::string inner;
    for (size_t s = 0; s < parts.size(); ++s) {
      const auto& [name, seconds] = parts[s];
      said += fmt::format("{}{} {}", s == 0 ? "" : ", ", name, duration(seconds));
      const double share = ratio(seconds, total(parts));
      if (share >= 0.001) {
        inner += fmt::format(R"(<i class="s{}" style="width:{:.1f}%">{}</i>)", s, 100 * share,
                             share * ratio(total(parts), longest) > 0.075 ? name : "");
      }
    }
    html += fmt::format(
        R"(<p><span>{}</span><span class="stack" role="img" aria-label="{} a token: {}"><span style="width:{:.1f}%">{}</span></span></p>)",
        escape_html(runs[i].mode), duration(total(parts)), said, 100 * ratio(total(parts), longest), inner);
  }
  html +=
      "</div><div class=\"wide\"><table><caption>Time a token, by stage</caption><thead><tr><th "
      "scope=\"col\">stage</th>";
  for (const ReportRun& run : runs)
    html += fmt::format("<th scope=\"col\">{}</th><th scope=\"col\">share</th>", escape_html(run.mode));
  html += "</tr></thead><tbody>";
  for (size_t s = 0; s < per_token[0].size(); ++s) {
    html += fmt::format(R"(<tr><th scope="row"><i class="key s{}"></i>{}</th>)", s, per_token[0][s].first);
    for (const Stages& parts : per_token) {
      const double seconds = parts[s].second;
      html += seconds == 0.0 ? "<td>–</td><td>–</td>"
                             : fmt::format("<td>{}</td><td>{:.1f} %</td>", duration(seconds),
                                           100 * ratio(seconds, total(parts)));
    }
    html += "</tr>";
  }
  html += R"(<tr class="main"><th scope="row">all stages</th>)";
  for (const Stages& parts : per_token)
    html += fmt::format("<td>{}</td><td></td>", duration(total(parts)));
  return html + "</tr></tbody></table></div>";
}

std::string accept_length_table(const GenerationStats& stats) {
  int64_t most = 1;
  for (const int64_t count : stats.accept_lengths)
    most = std::max(most, count);
  std::string html =
      head("Tokens that a round gave", {"tokens", "<span class=\"hidden\">bar</span>", "rounds"});
  for (size_t length = 1; length < stats.accept_lengths.size(); ++length) {
    const int64_t count = stats.accept_lengths[length];
    html += fmt::format(R"(<tr><th scope="row">{}</th>{}<td>{}</td></tr>)", length, bar(ratio(count, most)),
                        count);
  }
  return html + "</tbody></table>";
}

std::string depth_table(const GenerationStats& stats) {
  if (stats.offered.empty()) return "<p>Nothing was drafted.</p>";
  std::string html = head("Rounds that accepted a node at this depth (pale: that had one there)",
                          {"depth", "<span class=\"hidden\">bar</span>", "accepted", "of"});
  for (size_t d = 0; d < stats.offered.size(); ++d) {
    html += fmt::format(R"(<tr><th scope="row">{}</th>{}<td>{}</td><td>{}</td></tr>)", d + 1,
                        bar(ratio(stats.accepted[d], stats.rounds), ratio(stats.offered[d], stats.rounds)),
                        stats.accepted[d], stats.offered[d]);
  }
  return html + "</tbody></table>";
}

std::string timeline(const std::vector<const ReportRound*>& rounds) {
  size_t most = 1;
  int64_t tokens = 0;
  for (const ReportRound* round : rounds) {
    most = std::max(most, round->emitted.size());
    tokens += static_cast<int64_t>(round->emitted.size());
  }
  std::string path;
  for (size_t i = 0; i < rounds.size(); ++i)
    path += fmt::format("M{0} {1}v-{2}h6v{2}z", 8 * i + 1, 10 * most, 10 * rounds[i]->emitted.size());
  return fmt::format(
      R"(<svg class="timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="Accept length of each of {}: {} in all, at most {}"><path d="{}"/><rect class="now" width="8"/></svg>)",
      8 * rounds.size(), 10 * most, plural(static_cast<int64_t>(rounds.size()), "round"),
      plural(tokens, "token"), most, path);
}

std::string round_table(const std::vector<const ReportRound*>& rounds, const Tokenizer* tokenizer) {
  std::string html = "<div class=\"wide\">";
  html +=
      head(rounds.size() > kMostTableRounds ? fmt::format("The first {} rounds", kMostTableRounds) : "Rounds",
           {"round", "nodes", "tokens", "said"});
  for (size_t i = 0; i < std::min(rounds.size(), kMostTableRounds); ++i) {
    std::string said;
    for (const int32_t token : rounds[i]->emitted)
      said += fmt::format("{}{}", tokenizer == nullptr && !said.empty() ? " " : "",
                          escape_html(token_label(tokenizer, token)));
    html += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td><code>{}</code></td></tr>",
                        i + 1, rounds[i]->nodes, rounds[i]->emitted.size(), said);
  }
  return html + "</tbody></table></div>";
}

}  // namespace kdtree::cli
