#include "cli/generation_output.h"

#include <cstdio>

#include <fmt/ranges.h>
#include <unistd.h>

#include "cli/output.h"
#include "cli/report/charts.h"

namespace kdtree::cli {

using Json = nlohmann::ordered_json;

Result<GenerationOutput> GenerationOutput::create(size_t requests, const Tokenizer* tokenizer,
                                                  const std::vector<std::string>& stops,
                                                  const Options& options) {
  GenerationOutput output;
  output.tokenizer_ = tokenizer;
  output.options_ = options;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  for (size_t i = 0; i < requests; ++i) {
    auto matcher = StopMatcher::create(stops);
    if (!matcher) return with_context(matcher.error(), "--stop: ");
    output.texts_.push_back({{}, {}, {}, "interrupted", *std::move(matcher), TextStream(terminal), false});
  }
  return output;
}

// What the tokens add to a text, and to what is shown of it.
std::string GenerationOutput::text_of(Text& text, std::span<const int32_t> tokens) const {
  if (tokenizer_ == nullptr) {
    const bool first = text.tokens.size() == tokens.size();
    return fmt::format("{}{}", first ? "" : " ", fmt::join(tokens, " "));
  }
  std::string bytes;
  for (const int32_t token : tokens)
    bytes += tokenizer_->decode(token);
  bytes = text.stops.push(bytes);
  text.bytes += bytes;
  return text.stream.push(bytes);
}

bool GenerationOutput::add(const Emission& emission) {
  Text& text = texts_[static_cast<size_t>(emission.request)];
  text.tokens.insert(text.tokens.end(), emission.tokens.begin(), emission.tokens.end());
  text.hidden += text_of(text, emission.tokens);
  const bool stopped = text.stops.stopped();
  if (stopped || emission.finish != FinishReason::none) {
    text.done = true;
    text.reason = stopped ? "stop" : finish_reason_name(emission.finish);
    const std::string rest = text.stops.finish();
    text.bytes += rest;
    text.hidden += text.stream.push(rest) + text.stream.finish();
  }
  advance();
  return !stopped;
}

void GenerationOutput::finish() {
  for (Text& text : texts_) {
    if (text.done) continue;
    const std::string rest = text.stops.finish();
    text.bytes += rest;
    text.hidden += text.stream.push(rest) + text.stream.finish();
    text.done = true;
  }
  advance();
}

void GenerationOutput::show(std::string_view text) {
  if (text.empty() || options_.quiet) return;
  write_out(text);
  line_ended_ = text.back() == '\n';
}

void GenerationOutput::advance() {
  for (; shown_ < texts_.size(); ++shown_, headed_ = false) {
    Text& text = texts_[shown_];
    if (!text.done && !options_.stream) return;
    if (texts_.size() > 1 && !headed_) {
      show(fmt::format("=== {} of {}\n", shown_ + 1, texts_.size()));
      headed_ = true;
    }
    show(text.hidden);
    text.hidden.clear();
    if (options_.stream) std::fflush(stdout);
    if (!text.done) return;
    if (!line_ended_) show("\n");
  }
}

std::string summary_line(const GenerationStats& s, const StageTimes& t, int64_t tokens) {
  const double decode = t.rounds();
  if (s.rounds == 0) return fmt::format("{} tokens; prompt {:.3g} s", tokens, t.prefill);
  const auto percent = [&](double seconds) { return 100.0 * seconds / decode; };
  return fmt::format(
      "{} tokens, {} of them in {} rounds of {:.1f} nodes: {:.3g} s, {} tokens/s, accept length {:.2f}; "
      "draft "
      "{:.0f} %, verify {:.0f} %, rest {:.1f} %; prompt {:.3g} s",
      tokens, s.emitted, s.rounds, static_cast<double>(s.nodes) / static_cast<double>(s.rounds), decode,
      rate(static_cast<double>(s.emitted) / decode), s.mean_accept_length(), percent(t.draft),
      percent(t.verify), percent(decode - t.draft - t.verify), t.prefill);
}

Json stats_json(const GenerationStats& stats) {
  Json json{{"rounds", stats.rounds},
            {"emitted", stats.emitted},
            {"nodes", stats.nodes},
            {"mean_accept_length", stats.mean_accept_length()},
            {"accept_lengths", stats.accept_lengths}};
  json["acceptance_by_depth"] = Json::array();
  for (size_t d = 0; d < stats.offered.size(); ++d) {
    json["acceptance_by_depth"].push_back(
        {{"depth", d + 1}, {"offered", stats.offered[d]}, {"accepted", stats.accepted[d]}});
  }
  return json;
}

Json times_json(const StageTimes& t) {
  return {{"prefill", t.prefill}, {"draft", t.draft},   {"build", t.build},  {"compile", t.compile},
          {"verify", t.verify},   {"accept", t.accept}, {"commit", t.commit}};
}

}  // namespace kdtree::cli
