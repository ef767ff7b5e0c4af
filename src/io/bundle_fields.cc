#include "io/bundle_fields.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <variant>

#include <nlohmann/json.hpp>

namespace kdtree {
namespace {

using Member = std::variant<int32_t VerifyProblem::*, int64_t VerifyProblem::*, float VerifyProblem::*>;

struct Field {
  const char* name;
  Member member;
  bool required = false;
};

#define KDTREE_FIELD(name) #name, &VerifyProblem::name
const Field kFields[] = {
    {KDTREE_FIELD(batch), true},      {KDTREE_FIELD(heads), true},
    {KDTREE_FIELD(latent_dim), true}, {KDTREE_FIELD(rope_dim), true},
    {KDTREE_FIELD(scale), true},      {KDTREE_FIELD(logit_cap)},
    {KDTREE_FIELD(out_dtype), true},  {KDTREE_FIELD(q_token_stride)},
    {KDTREE_FIELD(q_head_stride)},    {KDTREE_FIELD(out_token_stride)},
    {KDTREE_FIELD(out_head_stride)},  {KDTREE_FIELD(lse_token_stride)},
    {KDTREE_FIELD(lse_head_stride)},  {KDTREE_FIELD(lse_dtype)},
    {KDTREE_FIELD(kv_slots), true},   {KDTREE_FIELD(kv_row_stride)},
    {KDTREE_FIELD(kv_scale)},         {KDTREE_FIELD(draft_location), true},
    {KDTREE_FIELD(draft_row_stride)}, {KDTREE_FIELD(tree_encoding), true},
    {KDTREE_FIELD(mask_skip_prefix)}, {KDTREE_FIELD(bits_stride)},
    {KDTREE_FIELD(mask_row_stride)},  {KDTREE_FIELD(mask_column_offset)},
};
#undef KDTREE_FIELD

// More text than these fields can have.
constexpr size_t kMaxJsonBytes = 65536;

template <class Integer>
bool read_number(const nlohmann::json& value, Integer& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<Integer>::max()}) {
    return false;
  }
  const auto wide = value.get<int64_t>();
  if (wide < std::numeric_limits<Integer>::min()) return false;
  out = static_cast<Integer>(wide);
  return true;
}

bool read_number(const nlohmann::json& value, float& out) {
  if (!value.is_number()) return false;
  const auto wide = value.get<double>();
  if (std::fabs(wide) > double{std::numeric_limits<float>::max()}) return false;
  out = static_cast<float>(wide);
  return true;
}

const char* kind(const Member& member) {
  constexpr const char* kKinds[] = {"a 32-bit integer", "a 64-bit integer", "a number that fits float"};
  return kKinds[member.index()];
}

}  // namespace

std::string problem_to_json(const VerifyProblem& problem) {
  nlohmann::ordered_json json;
  for (const Field& field : kFields)
    std::visit([&](auto member) { json[field.name] = problem.*member; }, field.member);
  return json.dump();
}

Result<VerifyProblem> problem_from_json(const std::string& text) {
  if (text.size() > kMaxJsonBytes) {
    return fail(KDTREE_INVALID_FILE, "has {} bytes, expected at most {}", text.size(), kMaxJsonBytes);
  }
  // The object itself keeps one of two equal keys.
  size_t keys = 0;
  const auto count_keys = [&](int, nlohmann::json::parse_event_t event, nlohmann::json&) {
    if (event == nlohmann::json::parse_event_t::key) ++keys;
    return true;
  };
  const auto json = nlohmann::json::parse(text, count_keys, /*allow_exceptions=*/false);
  // The parser takes a NUL for the end of its input, which would hide what follows.
  if (!json.is_object() || text.find('\0') != std::string::npos)
    return fail(KDTREE_INVALID_FILE, "is not the text of a JSON object");

  auto problem = kdtree_init<VerifyProblem>();
  size_t known = 0;
  for (const Field& field : kFields) {
    const auto found = json.find(field.name);
    if (found == json.end()) {
      if (field.required) return fail(KDTREE_INVALID_FILE, "has no {}", field.name);
      continue;
    }
    ++known;
    const bool read =
        std::visit([&](auto member) { return read_number(*found, problem.*member); }, field.member);
    if (!read) {
      return fail(KDTREE_INVALID_FILE, "{} is {}, expected {}", field.name, found->dump(),
                  kind(field.member));
    }
  }
  for (const auto& item : json.items()) {
    const std::string& name = item.key();
    const bool is_field = std::any_of(std::begin(kFields), std::end(kFields),
                                      [&](const Field& field) { return name == field.name; });
    if (!is_field)
      return fail(KDTREE_INVALID_FILE, "has a field \"{}\", which version 1 does not define", name);
  }
  if (keys != known) return fail(KDTREE_INVALID_FILE, "has a field twice");
  return problem;
}

}  // namespace kdtree
