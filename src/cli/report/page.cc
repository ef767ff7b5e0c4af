#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "cli/report/assets.h"
#include "cli/report/charts.h"
#include "cli/report/html.h"
#include "cli/report/report.h"

namespace kdtree::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rounds = std::vector<const ReportRound*>;

// The page's own script, which says the word that nobody could know before, and nothing else that runs or is
// loaded, whatever a text may say.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; base-uri 'none'; form-action "
    "'none'";

std::string random_word() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

Rounds rounds_of(const ReportRun& run, size_t request) {
  Rounds rounds;
  for (const ReportRound& round : run.rounds) {
    if (round.request == static_cast<int64_t>(request)) rounds.push_back(&round);
  }
  return rounds;
}

// A round as page.js reads it: nodes verified; tokens, parents and probabilities given the parent, in
// thousandths, of the nodes that are kept; the accepted ones; the tokens that were emitted.
Json round_json(const ReportRound& round) {
  const DraftTree& tree = round.tree;
  Json shares = Json::array();
  for (size_t node = 0; node < tree.parent.size(); ++node) {
    const double from = node == 0 ? 0.0 : tree.log_weight[static_cast<size_t>(tree.parent[node])];
    shares.push_back(std::lround(1000 * std::exp(tree.log_weight[node] - from)));
  }
  return Json::array({round.nodes, tree.token, tree.parent, shares, round.path, round.emitted});
}

Json labels_json(const GenerationReport& report, const ReportRun& run) {
  std::set<int32_t> tokens;
  for (const ReportRound& round : run.rounds) {
    tokens.insert(round.tree.token.begin(), round.tree.token.end());
    tokens.insert(round.emitted.begin(), round.emitted.end());
  }
  Json labels = Json::object();
  for (const int32_t token : tokens)
    labels[fmt::format("{}", token)] = token_label(report.tokenizer, token);
  return labels;
}

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<li><strong>{}</strong> <span>{}</span></li>", value, what);
}

std::string header(const GenerationReport& report, const ReportRun& run) {
  const ReportRun& baseline = baseline_run(report.runs);
  std::string tiles;
  // What a draft tree is for comes first; what it does to the time depends on the machine.
  tiles += tile(fmt::format("{:.2f}", run.accept_length()),
                run.stats.rounds == 1 ? "tokens in the one verify pass" : "tokens a verify pass");
  tiles += tile(fmt::format("{}", run.stats.rounds),
                fmt::format("{} for {}", run.stats.rounds == 1 ? "round" : "rounds",
                            plural(run.stats.emitted, "token")));
  tiles += tile(rate(run.tokens_per_second()), "tokens a second");
  if (report.runs.size() > 1 && &baseline != &run) {
    tiles += tile(fmt::format("{:.2f}×", speedup(run, baseline)),
                  fmt::format("as fast as {}, with the same tokens", mode_title(baseline.mode)));
  }
  return fmt::format(
      "<header><p class=\"kind\">kdtree generate</p><h1>{} with {}</h1><ul "
      "class=\"tiles\">{}</ul></header>\n",
      escape_html(report.model), mode_title(run.mode), tiles);
}

const char* finish_text(const std::string& reason) {
  return reason == "eos"       ? "It ends with the model's end-of-text token."
         : reason == "length"  ? "It ends at --max-new."
         : reason == "context" ? "It ends where the model's context is full."
         : reason == "stop"    ? "It ends before a --stop string."
                               : "";
}

constexpr const char* kControls = R"html(<div class="controls" role="group" aria-label="Choose a round">
<button type="button" data-step="first" aria-label="First round"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 3h2v10H3zM13 3v10L6 8z"/></svg></button>
<button type="button" data-step="-1" aria-label="Previous round"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M11 3v10L4 8z"/></svg></button>
<button type="button" data-step="1" aria-label="Next round"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M5 3v10l7-5z"/></svg></button>
<button type="button" data-step="last" aria-label="Last round"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 3v10l7-5zM11 3h2v10h-2z"/></svg></button>
<button type="button" data-step="play">Play</button>
<label>Round <input type="range" min="1" max="{}" value="1"></label>
</div>)html";

constexpr const char* kKey = R"html(<ul class="key-list">
<li><svg viewBox="0 0 44 20" aria-hidden="true"><path class="edge" stroke-width="2" d="M2 10H12"/><rect class="q1" x="12" y="2" width="30" height="16" rx="4"/></svg>drafted; the wider the edge, the likelier to the drafter</li>
<li><svg viewBox="0 0 44 20" aria-hidden="true"><path class="edge on" stroke-width="4" d="M2 10H12"/><rect class="on" x="12" y="2" width="30" height="16" rx="4"/></svg>accepted by the target</li>
<li><svg viewBox="0 0 44 20" aria-hidden="true"><path class="edge bonus" stroke-width="2" d="M2 10H12"/><rect class="bonus" x="12" y="2" width="30" height="16" rx="8"/></svg>the target's own token, root of the next round</li>
</ul>)html";

std::string trees(const Rounds& rounds) {
  return fmt::format(
      "<div class=\"trees card\">\n<h3 class=\"round\">The trees</h3>\n"
      "<noscript><p>The trees are drawn by a script, which does not run here; a table below has all "
      "rounds.</p></noscript>\n"
      "<p class=\"said\" aria-live=\"polite\"></p>\n"
      "{}\n{}\n"
      "<div class=\"tree\" tabindex=\"-1\"></div>\n<ol class=\"path\"></ol>\n{}\n</div>\n",
      timeline(rounds), fmt::format(fmt::runtime(kControls), rounds.size()), kKey);
}

std::string request_section(const GenerationReport& report, const ReportRun& run, size_t index) {
  const ReportText& text = report.texts[index];
  const Rounds rounds = rounds_of(run, index);
  const bool drawn = !rounds.empty() && run.stats.nodes > 0;
  std::string html = fmt::format(
      "<section class=\"request\" aria-labelledby=\"request-{0}\">\n<h2 id=\"request-{0}\">{1}</h2>\n"
      "<div class=\"{2}\">\n<div class=\"card said-text\">\n<h3>Text, round by round</h3>\n"
      "<p class=\"note\">Each mark begins what one verify pass gave, its last token, <b>bold</b>, being the "
      "target's own. {3}<span class=\"live-only\">Click a round to see its tree, or use the arrow "
      "keys.</span></p>\n"
      "<div class=\"text{4}\" role=\"group\" aria-label=\"Prompt and text\" tabindex=\"0\">{5}</div>\n"
      "<p class=\"note\">{6} of prompt, {7}. {8}</p>\n</div>\n",
      index + 1,
      report.texts.size() == 1 ? std::string("Text and trees")
                               : fmt::format("Prompt {} of {}", index + 1, report.texts.size()),
      drawn ? "split" : "alone", text.prompt.empty() ? "" : "The prompt is grey. ",
      report.tokenizer == nullptr ? " ids" : "", text_html(text, rounds, report.tokenizer),
      plural(static_cast<int64_t>(text.prompt.size()), "token"),
      plural(static_cast<int64_t>(text.tokens.size()), "new token"), finish_text(text.finish_reason),
      drawn ? "<span class=\"live-only\">Click a round to see its tree, or use the arrow keys.</span>" : "");
  if (drawn) html += trees(rounds);
  html += "</div>\n";
  if (drawn) {
    Json json = Json::array();
    for (const ReportRound* round : rounds)
      json.push_back(round_json(*round));
    html += fmt::format("<details><summary>All rounds as a table</summary>{}</details>\n",
                        round_table(rounds, report.tokenizer));
    html += fmt::format("<script type=\"application/json\">{}</script>\n", json_in_script(json));
  }
  return html + "</section>\n";
}

std::string numbers(const GenerationReport& report, const ReportRun& run) {
  std::string html = fmt::format(
      "<section aria-labelledby=\"speed\">\n<h2 id=\"speed\">Speed</h2>\n<div class=\"pair\">\n"
      "<div class=\"card\">{}\n{}</div>\n<div class=\"card\"><h3>Where the time goes</h3>{}</div>\n</div>\n"
      "</section>\n",
      comparison_table(report.runs), progress_chart(report.runs), stage_bars(report.runs));
  return html +
         fmt::format(
             "<section aria-labelledby=\"rounds\">\n<h2 id=\"rounds\">Rounds</h2>\n<div class=\"pair\">\n"
             "<div class=\"card\"><h3>Accept length</h3>{}</div>\n"
             "<div class=\"card\"><h3>Acceptance by depth</h3>{}</div>\n</div>\n</section>\n",
             accept_length_table(run.stats), depth_table(run.stats));
}

std::string settings(const GenerationReport& report) {
  std::string rows;
  for (const auto& [name, value] : report.settings)
    rows +=
        fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape_html(name), escape_html(value));
  return fmt::format(
      "<section aria-labelledby=\"settings\">\n<h2 id=\"settings\">Settings</h2>\n"
      "<div class=\"card wide\"><table class=\"settings\"><tbody>{}</tbody></table></div>\n</section>\n",
      rows);
}

}  // namespace

std::string report_page(const GenerationReport& report) {
  const ReportRun& run = shown_run(report.runs);
  std::string body = header(report, run) + "<main id=\"main\">\n";
  const size_t shown = std::min(report.texts.size(), kMostReportTexts);
  for (size_t i = 0; i < shown; ++i)
    body += request_section(report, run, i);
  if (shown < report.texts.size()) {
    body += fmt::format("<p>The first {} of {} prompts are shown; the numbers below are of all.</p>\n", shown,
                        report.texts.size());
  }
  body += numbers(report, run) + settings(report) + "</main>\n";
  const std::string word = random_word();
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{} with {} – kdtree</title>\n"
      "<style>\n{}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the text</a>\n{}"
      "<script type=\"application/json\" "
      "id=\"labels\">{}</script>\n<script nonce=\"{}\">\n{}</script>\n</body>\n</html>\n",
      fmt::format(kPolicy, word), escape_html(report.model), mode_title(run.mode), kReportStyle, body,
      json_in_script(labels_json(report, run)), word, kReportScript);
}

}  // namespace kdtree::cli
