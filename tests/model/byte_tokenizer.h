// The tokenizer.json of a vocabulary that is the 256 bytes and one added token, 256.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace kdtree {

// GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up.
inline nlohmann::json byte_tokenizer_json() {
  nlohmann::json vocab;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : next++;
    std::string text;
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
    }
    vocab[text] = byte;
  }
  return {{"added_tokens", nlohmann::json::array({{{"id", 256}, {"content", "<|end|>"}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

}  // namespace kdtree
