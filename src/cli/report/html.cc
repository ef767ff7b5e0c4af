#include "cli/report/html.h"

#include <fmt/ranges.h>

#include "engine/text_stream.h"

namespace kdtree::cli {
namespace {

constexpr size_t kMostLabel = 20;          // characters
constexpr size_t kMostPromptBytes = 4000;  // the end of a longer prompt is shown

void append_escaped(std::string_view character, std::string& to) {
  switch (character.front()) {
    case '&':
      to += "&amp;";
      break;
    case '<':
      to += "&lt;";
      break;
    case '>':
      to += "&gt;";
      break;
    case '"':
      to += "&quot;";
      break;
    case '\'':
      to += "&#39;";
      break;
    default:
      to += character;
  }
}

std::string written_out(uint32_t code_point) {
  return code_point < 0x100 ? fmt::format("\\x{:02x}", code_point) : fmt::format("\\u{:04x}", code_point);
}

// A run of bytes, or a token without any.
struct Part {
  int64_t round = -1;  // -1: the prompt, or the first token, which the prompt's pass gave
  bool bonus = false;  // the target's own token, the round's last
  int32_t token = -1;  // without bytes
  char byte = 0;
};

// Puts parts into the spans of their rounds, in order.
class Spans {
 public:
  explicit Spans(const std::vector<const ReportRound*>& rounds) : rounds_(rounds) {}

  void add(const Part& part, std::string_view html) {
    while (round_ < part.round)
      open(round_ + 1);
    if (part.bonus && !bonus_) html_ += "<b>";
    if (!part.bonus && bonus_) html_ += "</b>";
    bonus_ = part.bonus;
    html_ += html;
    empty_ = false;
  }
  std::string finish() {
    while (round_ + 1 < static_cast<int64_t>(rounds_.size()))
      open(round_ + 1);
    close();
    return std::move(html_);
  }

 private:
  void close() {
    if (bonus_) html_ += "</b>";
    bonus_ = false;
    if (round_ < 0) return;
    // A round that only began a character, or came behind a stop string, can still be chosen.
    html_ += empty_ ? R"(<i class="none"></i></span>)" : "</span>";
  }
  void open(int64_t round) {
    close();
    round_ = round;
    empty_ = true;
    const ReportRound& opened = *rounds_[static_cast<size_t>(round)];
    html_ += fmt::format(R"(<span class="r h{}" title="Round {}: {}, {}">)", round % 4, round + 1,
                         plural(opened.nodes, "node"),
                         plural(static_cast<int64_t>(opened.emitted.size()), "token"));
  }

  const std::vector<const ReportRound*>& rounds_;
  std::string html_;
  int64_t round_ = -1;
  bool bonus_ = false;
  bool empty_ = true;
};

void add_parts(std::span<const int32_t> tokens, const Tokenizer* tokenizer, Part like,
               std::vector<Part>& parts) {
  for (const int32_t token : tokens) {
    const std::string_view bytes = tokenizer != nullptr ? tokenizer->decode(token) : "";
    like.token = bytes.empty() ? token : -1;
    if (bytes.empty()) parts.push_back(like);
    for (const char byte : bytes) {
      like.byte = byte;
      parts.push_back(like);
    }
  }
}

std::string character_html(uint32_t code_point, std::string_view encoded) {
  // Marks stand before what they mark and are no text: copying leaves them out.
  if (code_point == '\n') return "<i class=\"nl\"></i>\n";
  if (code_point == '\t') return "<i class=\"tab\"></i>\t";
  if (is_control(code_point)) return fmt::format(R"(<i class="x">{}</i>)", written_out(code_point));
  std::string html;
  append_escaped(encoded, html);
  return html;
}

// A character belongs to the round that completed it.
void add_text(std::span<const Part> parts, bool ids, Spans& spans) {
  for (size_t i = 0; i < parts.size();) {
    if (parts[i].token >= 0) {
      const char* form = ids ? "{} " : R"(<i class="x">{}</i>)";
      spans.add(parts[i], fmt::format(fmt::runtime(form), parts[i].token));
      ++i;
      continue;
    }
    std::string bytes;
    for (size_t n = i; n < parts.size() && n < i + 4 && parts[n].token < 0; ++n)
      bytes += parts[n].byte;
    const Utf8Character character = first_character(bytes);
    if (character.form == Utf8Character::Form::complete) {
      spans.add(parts[i + character.size - 1],
                character_html(character.code_point, std::string_view(bytes).substr(0, character.size)));
      i += character.size;
      continue;
    }
    spans.add(parts[i], fmt::format(R"(<i class="x">\x{:02x}</i>)", static_cast<uint8_t>(bytes[0])));
    ++i;
  }
}

}  // namespace

std::string escape_html(std::string_view text) {
  TextStream stream(true);
  const std::string safe = stream.push(text) + stream.finish();
  std::string html;
  for (const char& c : safe)
    append_escaped({&c, 1}, html);
  return html;
}

std::string json_in_script(const nlohmann::ordered_json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)) {
    // '<' stands in strings only.
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string token_label(const Tokenizer* tokenizer, int32_t token) {
  std::string_view bytes = tokenizer != nullptr ? tokenizer->decode(token) : "";
  if (bytes.empty()) return fmt::format("{}", token);
  std::string label;
  for (size_t characters = 0; !bytes.empty(); ++characters) {
    if (characters == kMostLabel) return label + "…";
    const Utf8Character character = first_character(bytes);
    const bool complete = character.form == Utf8Character::Form::complete;
    const uint32_t c = complete ? character.code_point : static_cast<uint8_t>(bytes[0]);
    const size_t size = complete ? character.size : 1;
    if (c == ' ') {
      label += "␣";
    } else if (c == '\n') {
      label += "↵";
    } else if (c == '\t') {
      label += "⇥";
    } else if (!complete || is_control(c)) {
      label += written_out(c);
    } else {
      label += bytes.substr(0, size);
    }
    bytes.remove_prefix(size);
  }
  return label;
}

std::string text_html(const ReportText& text, const std::vector<const ReportRound*>& rounds,
                      const Tokenizer* tokenizer) {
  const bool ids = tokenizer == nullptr;
  std::vector<Part> prompt;
  add_parts(text.prompt, tokenizer, {}, prompt);
  std::span<const Part> end = prompt;
  if (end.size() > kMostPromptBytes) end = end.last(kMostPromptBytes);
  static const std::vector<const ReportRound*> kNone;
  Spans prompt_spans(kNone);
  add_text(end, ids, prompt_spans);

  std::vector<Part> parts;
  size_t emitted = 0;
  for (const ReportRound* round : rounds)
    emitted += round->emitted.size();
  // What no round gave came from the prompt's pass: the first token.
  const std::span<const int32_t> tokens = text.tokens;
  add_parts(tokens.first(tokens.size() - std::min(emitted, tokens.size())), tokenizer, {}, parts);
  for (size_t i = 0; i < rounds.size(); ++i) {
    const std::span<const int32_t> said = rounds[i]->emitted;
    const auto round = static_cast<int64_t>(i);
    add_parts(said.first(said.size() - 1), tokenizer, {.round = round}, parts);
    add_parts(said.last(1), tokenizer, {.round = round, .bonus = true}, parts);
  }
  size_t bytes = 0;
  size_t shown = 0;
  while (shown < parts.size() && (ids || parts[shown].token >= 0 || bytes < text.bytes))
    bytes += parts[shown++].token < 0 ? 1 : 0;
  Spans spans(rounds);
  add_text(std::span(parts).first(shown), ids, spans);
  return fmt::format(R"(<span class="prompt">{}{}</span>{})",
                     prompt.size() > end.size() ? R"(<i class="cut"></i>)" : "", prompt_spans.finish(),
                     spans.finish());
}

}  // namespace kdtree::cli
