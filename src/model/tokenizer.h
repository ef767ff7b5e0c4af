// Text to token ids and back, for byte-level vocabularies without merges.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace kdtree {

// What a Hugging Face tokenizer.json means whose model is BPE with no merges over the 256 characters of
// GPT-2's byte alphabet: each byte is a token. Beside them there are added tokens ("<|endoftext|>"), which
// stand for no text. The file's post_processor and decoder are not applied: no token is put before or after a
// text.
class Tokenizer {
 public:
  // Errors: KDTREE_IO_ERROR; KDTREE_INVALID_FILE; KDTREE_UNSUPPORTED for a tokenizer of another kind. All but
  // the first name the key, what it is and what was expected.
  static Result<Tokenizer> load(const std::string& path);
  // The same from the file's text; `path` is for the messages.
  static Result<Tokenizer> parse(std::string_view json, const std::string& path);

  // One id a byte; `text` need not be UTF-8. Added tokens in it are not recognised: they are the boundaries
  // of turns and documents, and a text from a user or a file must not be able to set those.
  std::vector<int32_t> encode(std::string_view text) const;
  // The id's byte, valid for ever; empty for an added token and for ids that the vocabulary does not have.
  std::string_view decode(int32_t id) const;
  // The largest id + 1; not every id below it need exist.
  int32_t vocab_size() const { return vocab_size_; }

 private:
  Tokenizer() = default;

  std::array<int32_t, 256> ids_{};                        // of each byte
  std::array<std::pair<int32_t, uint8_t>, 256> bytes_{};  // the same the other way round, ids ascending
  int32_t vocab_size_ = 0;
};

}  // namespace kdtree
