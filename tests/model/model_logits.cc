// Writes the logits of a model for a token sequence, so that tests in Python can compare them with another
// implementation's.
//   model_logits TARGET_DIR TOKENS.npy OUT.safetensors [DRAFT_DIR]
// TOKENS.npy: int32 [T]. OUT: f32 logits [T, vocab], and with DRAFT_DIR f32 draft_logits [depth, vocab]: what
// the drafter proposes when the last token has not been computed by the target yet.
#include <cstdio>

#include "io/npy.h"
#include "io/safetensors.h"
#include "model/dflash.h"
#include "tests/model/forward.h"

namespace kdtree {
namespace {

Status run(const std::vector<std::string>& arguments) {
  auto target = TargetModel::load(arguments[0]);
  KDTREE_RETURN_IF_ERROR(target);
  const auto tokens = read_npy(arguments[1]);
  KDTREE_RETURN_IF_ERROR(tokens);
  if (tokens->dtype != DType::i32 || tokens->shape.size() != 1) {
    return fail(KDTREE_INVALID_FILE, "{}: expected int32 [T]", arguments[1]);
  }
  std::unique_ptr<DFlashDrafter> drafter;
  if (arguments.size() == 4) {
    auto loaded = DFlashDrafter::load(arguments[3], *target);
    KDTREE_RETURN_IF_ERROR(loaded);
    drafter = *std::move(loaded);
  }
  const auto ids = tokens->as<int32_t>();
  const auto logits = teacher_forced_logits(*target, ids);
  KDTREE_RETURN_IF_ERROR(logits);
  std::map<std::string, const Tensor*> out = {{"logits", &*logits}};
  Tensor proposed;
  if (drafter != nullptr) {
    auto result = draft_logits(*target, *drafter, ids);
    KDTREE_RETURN_IF_ERROR(result);
    proposed = *std::move(result);
    out["draft_logits"] = &proposed;
  }
  return write_safetensors(arguments[2], out, {});
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fputs("usage: model_logits TARGET_DIR TOKENS.npy OUT.safetensors [DRAFT_DIR]\n", stderr);
    return 2;
  }
  const kdtree::Status status = kdtree::run({argv + 1, argv + argc});
  if (status) return 0;
  std::fprintf(stderr, "model_logits: %s\n", status.error().message.c_str());
  return 1;
}
