// Arguments out of a fuzzer's bytes. Arrays are heap blocks of exactly the length they claim, so that
// AddressSanitizer sees a read or a write past their end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <fuzzer/FuzzedDataProvider.h>

#include "core/checked.h"
#include "kdtree/kdtree.h"

namespace kdtree::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : provider_(data, size) {}

  template <class T>
  T range(T least, T most) {
    return provider_.ConsumeIntegralInRange<T>(least, most);
  }
  bool flag() { return provider_.ConsumeBool(); }
  // Mostly a number that sizes and dtypes have; now and then any number.
  template <class T>
  T number(T least = -2, T most = 20) {
    switch (range(0, 31)) {
      case 0:
        return provider_.ConsumeIntegral<T>();
      case 1:
        return std::numeric_limits<T>::max();
      case 2:
        return std::numeric_limits<T>::min();
      default:
        return range<T>(least, most);
    }
  }
  float real() {
    const auto bits = range(0, 7) == 0 ? provider_.ConsumeIntegral<uint32_t>() : 0x3f800000u;
    float value = 0.0f;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  // `bytes` bytes, or NULL: now and then, and where `bytes` is negative or more than a fuzzer should
  // allocate. Filled from the input, then with zeros.
  void* block(int64_t bytes) {
    if (bytes < 0 || bytes > kMostBytes || range(0, 63) == 0) return nullptr;
    const auto count = static_cast<size_t>(bytes);
    blocks_.emplace_back(std::calloc(count > 0 ? count : 1, 1), &std::free);
    void* memory = blocks_.back().get();
    provider_.ConsumeData(memory, std::min(count, provider_.remaining_bytes()));
    return memory;
  }
  template <class T>
  T* array(int64_t count) {
    return static_cast<T*>(block(saturating_mul(count < 0 ? 0 : count, sizeof(T))));
  }
  // Elements of numbers near 0.
  template <class T>
  T* small_array(int64_t count, T least, T most) {
    T* elements = array<T>(count);
    for (int64_t i = 0; elements != nullptr && i < count; ++i)
      elements[i] = number<T>(least, most);
    return elements;
  }
  // An indptr array of `batch` requests that is valid most of the time; `total` is what it says if it is.
  // NULL where that is more than arrays hold.
  template <class T>
  T* indptr(int64_t batch, T most_step, int64_t& total) {
    total = 0;
    T* elements = array<T>(batch < 0 ? 0 : saturating_add(batch, 1));
    if (elements == nullptr || batch < 0) return elements;
    elements[0] = 0;
    for (int64_t r = 0; r < batch; ++r)
      elements[r + 1] = static_cast<T>(elements[r] + range<T>(0, most_step));
    if (range(0, 15) == 0) elements[range<int64_t>(0, batch)] = provider_.ConsumeIntegral<T>();
    total = valid_total(elements, batch);
    if (total <= kMostBytes) return elements;
    total = 0;
    return nullptr;
  }

  // A workspace of the size that a query answered, or of another.
  void* workspace(size_t& bytes) {
    if (range(0, 15) == 0) bytes = range<size_t>(0, bytes);
    void* memory = nullptr;
    if (bytes > static_cast<size_t>(kMostBytes) || posix_memalign(&memory, 64, bytes) != 0) return nullptr;
    blocks_.emplace_back(memory, &std::free);
    return memory;
  }

 private:
  static constexpr int64_t kMostBytes = 1 << 18;

  // Rows that arrays behind this indptr must hold: none, where the library has to refuse it.
  template <class T>
  static int64_t valid_total(const T* elements, int64_t batch) {
    if (elements[0] != 0) return 0;
    for (int64_t r = 0; r < batch; ++r) {
      if (elements[r + 1] < elements[r]) return 0;
    }
    return elements[batch];
  }

  FuzzedDataProvider provider_;
  std::vector<std::unique_ptr<void, decltype(&std::free)>> blocks_;
};

// A property that must hold whatever the input is.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace kdtree::fuzz
