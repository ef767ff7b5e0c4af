// The latent KV cache of all layers: one row a token and layer, in slots that requests may share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hwy/aligned_allocator.h>

#include "core/dtype.h"
#include "core/status.h"

namespace kdtree {

// Which slots are taken, and by how many requests.
class SlotAllocator {
 public:
  explicit SlotAllocator(int64_t slots);

  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }
  // `count` slots that nobody holds, each held once now. Errors: KDTREE_OUT_OF_MEMORY, taking none.
  Result<std::vector<int64_t>> allocate(int64_t count);
  // One more holder of slots that are held: a prefix shared with another request.
  void share(std::span<const int64_t> slots);
  // One holder less; a slot without holders is free.
  void release(std::span<const int64_t> slots);

 private:
  std::vector<int64_t> free_;     // taken from the back
  std::vector<int32_t> holders_;  // [slots]
};

class KvPool {
 public:
  // Rows of `width` elements of f32 or bf16. Memory is taken when a slot is first written.
  // Errors: KDTREE_OUT_OF_MEMORY.
  static Result<KvPool> create(int64_t layers, int64_t slots, int64_t width, DType dtype);

  int64_t slots() const { return slots_; }
  DType dtype() const { return dtype_; }
  SlotAllocator& allocator() { return allocator_; }

  std::byte* layer(int64_t index) { return rows_.get() + index * slots_ * row_bytes_; }
  int64_t row_bytes() const { return row_bytes_; }
  // Rounds `row` [width] to the pool's type.
  void write(int64_t layer, int64_t slot, std::span<const float> row);
  // Moves rows in every layer as if all were read first.
  void move(std::span<const int64_t> from, std::span<const int64_t> to);

 private:
  using Memory = hwy::AlignedFreeUniquePtr<std::byte[]>;

  KvPool(Memory rows, int64_t layers, int64_t slots, int64_t width, DType dtype);

  Memory rows_;  // [layers, slots, width]
  int64_t layers_;
  int64_t slots_;
  int64_t row_bytes_;
  DType dtype_;
  SlotAllocator allocator_;
  std::vector<std::byte> staging_;
};

}  // namespace kdtree
