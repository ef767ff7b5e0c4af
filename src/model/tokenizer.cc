#include "model/tokenizer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "io/mapped_file.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kMostDepth = 32;
constexpr int32_t kLargestId = std::numeric_limits<int32_t>::max() - 1;  // so that vocab_size() is one, too

// The characters of GPT-2's byte alphabet in UTF-8: a byte that Latin-1 prints is that character, the others
// are, in order, U+0100 and what follows.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printed = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      characters_[byte] = utf8(printed ? byte : next++);
      bytes_[characters_[byte]] = static_cast<uint8_t>(byte);
    }
  }

  const std::string& character(size_t byte) const { return characters_[byte]; }
  std::optional<uint8_t> byte(const std::string& character) const {
    const auto found = bytes_.find(character);
    return found == bytes_.end() ? std::nullopt : std::optional<uint8_t>(found->second);
  }

 private:
  static std::string utf8(uint32_t code_point) {  // below 0x800
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
  }

  std::array<std::string, 256> characters_;
  std::unordered_map<std::string, uint8_t> bytes_;
};

// In ASCII, so that a message is text whatever the file holds, and not too long for one.
std::string describe(const Json* value) {
  if (value == nullptr) return "absent";
  if (value->is_object()) return fmt::format("an object of {} keys", value->size());
  if (value->is_array()) return fmt::format("a list of {}", value->size());
  std::string text = value->dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  constexpr size_t kMostCharacters = 60;
  if (text.size() > kMostCharacters) text.replace(kMostCharacters, std::string::npos, "...");
  return text;
}

std::string describe(const std::string& text) {
  const Json json = text;
  return describe(&json);
}

// nullptr where absent.
const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

bool is_empty_text(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}

std::optional<int32_t> as_id(const Json* value) {
  if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() > uint64_t{kLargestId}) {
    return std::nullopt;
  }
  return value->get<int32_t>();
}

// Reads a file's JSON into the ids of bytes and the largest id.
class VocabularyReader {
 public:
  explicit VocabularyReader(const std::string& path) : path_(path) {}

  Status read(std::string_view text);

  std::array<int32_t, 256> ids{};
  int32_t largest_id = 0;

 private:
  // Errors: also of a key that appears twice, of which the parsed object keeps one.
  Result<Json> parse(std::string_view text) const;
  Status check_kind(const Json& root, const Json& model) const;
  Status read_added_tokens(const Json& root);
  Status read_vocab(const Json& model);
  Status take_id(int32_t id, const std::string& key, const std::string& token);

  tl::unexpected<Error> refuse(int32_t code, const std::string& key, const std::string& is,
                               std::string_view expected) const {
    return fail(code, "{}: {} is {}, expected {}; token ids can be given instead (--input-ids)", path_, key,
                is, expected);
  }
  tl::unexpected<Error> invalid(const std::string& key, const Json* value, std::string_view expected) const {
    return refuse(KDTREE_INVALID_FILE, key, describe(value), expected);
  }
  tl::unexpected<Error> unsupported(const std::string& key, const Json* value,
                                    std::string_view expected) const {
    return refuse(KDTREE_UNSUPPORTED, key, describe(value), expected);
  }

  const std::string& path_;
  ByteAlphabet alphabet_;
  std::map<std::string, int32_t> added_;
  std::unordered_map<int32_t, std::string> owners_;  // of the ids
};

constexpr const char* kExpectedId = "an integer in 0 .. 2147483646";

Result<Json> VocabularyReader::parse(std::string_view text) const {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> repeated;
  bool deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    deep |= depth > kMostDepth;
    return depth <= kMostDepth;
  };
  // The parser takes a NUL for the end of its input, which would hide what follows.
  const bool has_nul = text.find('\0') != std::string_view::npos;
  Json json = has_nul ? Json() : Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (!json.is_object()) return refuse(KDTREE_INVALID_FILE, "the file", "something else", "a JSON object");
  if (deep) {
    return refuse(KDTREE_INVALID_FILE, "the nesting", fmt::format("above {}", kMostDepth),
                  fmt::format("at most {}", kMostDepth));
  }
  if (repeated) {
    return refuse(KDTREE_INVALID_FILE, fmt::format("the key {}", describe(*repeated)), "twice in an object",
                  "each once");
  }
  return json;
}

Status VocabularyReader::check_kind(const Json& root, const Json& model) const {
  const Json* type = member(model, "type");
  if (type == nullptr || *type != "BPE") return unsupported("model.type", type, "\"BPE\"");
  const Json* merges = member(model, "merges");
  if (merges == nullptr || !merges->is_array()) return invalid("model.merges", merges, "an empty list");
  if (!merges->empty()) return unsupported("model.merges", merges, "an empty list: one token a byte");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* affix = member(model, key);
    if (affix != nullptr && !affix->is_null() && !is_empty_text(*affix)) {
      return unsupported(std::string("model.") + key, affix, "null");
    }
  }
  const Json* normalizer = member(root, "normalizer");
  if (normalizer != nullptr && !normalizer->is_null()) return unsupported("normalizer", normalizer, "null");

  // Without this one the vocabulary's characters would not be bytes.
  const Json* before = member(root, "pre_tokenizer");
  const bool is_object = before != nullptr && before->is_object();
  if (!is_object) return unsupported("pre_tokenizer", before, "an object of type \"ByteLevel\"");
  const Json* before_type = member(*before, "type");
  if (before_type == nullptr || *before_type != "ByteLevel") {
    return unsupported("pre_tokenizer.type", before_type, "\"ByteLevel\"");
  }
  const Json* space = member(*before, "add_prefix_space");
  if (space == nullptr || *space != false)
    return unsupported("pre_tokenizer.add_prefix_space", space, "false");
  return {};
}

Status VocabularyReader::take_id(int32_t id, const std::string& key, const std::string& token) {
  const auto [owner, taken] = owners_.emplace(id, token);
  if (!taken && owner->second != token) {
    return refuse(KDTREE_INVALID_FILE, key, std::to_string(id),
                  fmt::format("an id of its own: {} has this one", describe(owner->second)));
  }
  largest_id = std::max(largest_id, id);
  return {};
}

Status VocabularyReader::read_added_tokens(const Json& root) {
  const Json* list = member(root, "added_tokens");
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array()) return invalid("added_tokens", list, "a list");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string key = fmt::format("added_tokens[{}]", i);
    const Json& entry = (*list)[i];
    if (!entry.is_object()) return invalid(key, &entry, "an object");
    const Json* content = member(entry, "content");
    if (content == nullptr || !content->is_string() || is_empty_text(*content)) {
      return invalid(key + ".content", content, "text");
    }
    const auto token = content->get<std::string>();
    if (alphabet_.byte(token)) {
      return unsupported(key + ".content", content, "another text than a byte's character");
    }
    const auto id = as_id(member(entry, "id"));
    if (!id) return invalid(key + ".id", member(entry, "id"), kExpectedId);
    KDTREE_RETURN_IF_ERROR(take_id(*id, key + ".id", token));
    if (!added_.emplace(token, *id).second) return invalid(key + ".content", content, "each token once");
  }
  return {};
}

Status VocabularyReader::read_vocab(const Json& model) {
  const Json* vocab = member(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return invalid("model.vocab", vocab, "an object");
  std::array<bool, 256> present{};
  for (const auto& [token, value] : vocab->items()) {
    const std::string key = fmt::format("model.vocab[{}]", describe(token));
    const auto id = as_id(&value);
    if (!id) return invalid(key, &value, kExpectedId);
    const auto byte = alphabet_.byte(token);
    const auto added = added_.find(token);
    if (added != added_.end() && added->second != *id) {
      return invalid(key, &value, fmt::format("{}, as in added_tokens", added->second));
    }
    if (!byte && added == added_.end()) {
      return unsupported(key, &value, "no such entry: only those of single bytes and of added_tokens");
    }
    KDTREE_RETURN_IF_ERROR(take_id(*id, key, token));
    if (!byte) continue;
    ids[*byte] = *id;
    present[*byte] = true;
  }
  const auto missing =
      static_cast<size_t>(std::find(present.begin(), present.end(), false) - present.begin());
  if (missing == present.size()) return {};
  return refuse(KDTREE_UNSUPPORTED, fmt::format("model.vocab[{}]", describe(alphabet_.character(missing))),
                "absent", fmt::format("all 256 bytes; this one is 0x{:02x}", missing));
}

Status VocabularyReader::read(std::string_view text) {
  const auto root = parse(text);
  KDTREE_RETURN_IF_ERROR(root);
  const Json* model = member(*root, "model");
  if (model == nullptr || !model->is_object()) return invalid("model", model, "an object");
  KDTREE_RETURN_IF_ERROR(check_kind(*root, *model));
  KDTREE_RETURN_IF_ERROR(read_added_tokens(*root));
  return read_vocab(*model);
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const auto file = MappedFile::open(path);
  KDTREE_RETURN_IF_ERROR(file);
  const auto bytes = file->bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& path) {
  if (json.size() > kMostBytes) {
    return fail(KDTREE_INVALID_FILE, "{}: has {} bytes, expected at most {}", path, json.size(), kMostBytes);
  }
  VocabularyReader reader(path);
  KDTREE_RETURN_IF_ERROR(reader.read(json));
  Tokenizer tokenizer;
  tokenizer.ids_ = reader.ids;
  tokenizer.vocab_size_ = reader.largest_id + 1;
  for (size_t byte = 0; byte < 256; ++byte)
    tokenizer.bytes_[byte] = {reader.ids[byte], static_cast<uint8_t>(byte)};
  std::sort(tokenizer.bytes_.begin(), tokenizer.bytes_.end());
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text)
    ids.push_back(ids_[static_cast<uint8_t>(c)]);
  return ids;
}

std::string_view Tokenizer::decode(int32_t id) const {
  static const std::array<char, 256> kBytes = [] {
    std::array<char, 256> all{};
    for (size_t byte = 0; byte < all.size(); ++byte)
      all[byte] = static_cast<char>(byte);
    return all;
  }();
  const auto found = std::lower_bound(bytes_.begin(), bytes_.end(), std::pair{id, uint8_t{0}});
  if (found == bytes_.end() || found->first != id) return {};
  return {&kBytes[found->second], 1};
}

}  // namespace kdtree
