// What all entry points share: parameter blocks, statuses, messages, threads.
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/capi/calls.h"

namespace kdtree {
namespace {

using testing::last_error;

kdtree_tree_validate_params chain_of_two() {
  static const int32_t indptr[] = {0, 2};
  static const int32_t parents[] = {-1, 0};
  auto p = KDTREE_INIT(kdtree_tree_validate_params);
  p.qo_indptr = indptr;
  p.parents = parents;
  p.batch = 1;
  return p;
}

TEST(Abi, VersionsAgree) {
  EXPECT_EQ(kdtree_abi_version(), KDTREE_ABI_VERSION);
  EXPECT_EQ(kdtree_version(), std::to_string(KDTREE_VERSION_MAJOR) + "." +
                                  std::to_string(KDTREE_VERSION_MINOR) + "." +
                                  std::to_string(KDTREE_VERSION_PATCH));
}

TEST(Abi, StatusNames) {
  for (const auto& [code, name] : std::vector<std::pair<int32_t, std::string>>{
           {KDTREE_OK, "KDTREE_OK"},
           {KDTREE_INVALID_ARGUMENT, "KDTREE_INVALID_ARGUMENT"},
           {KDTREE_INVALID_STRUCT, "KDTREE_INVALID_STRUCT"},
           {KDTREE_INVALID_TREE, "KDTREE_INVALID_TREE"},
           {KDTREE_NOT_A_NUMBER, "KDTREE_NOT_A_NUMBER"},
           {KDTREE_INVALID_FILE, "KDTREE_INVALID_FILE"},
           {KDTREE_UNSUPPORTED, "KDTREE_UNSUPPORTED"},
           {KDTREE_BACKEND_UNAVAILABLE, "KDTREE_BACKEND_UNAVAILABLE"},
           {KDTREE_OUT_OF_MEMORY, "KDTREE_OUT_OF_MEMORY"},
           {KDTREE_WORKSPACE_TOO_SMALL, "KDTREE_WORKSPACE_TOO_SMALL"},
           {KDTREE_BUFFER_TOO_SMALL, "KDTREE_BUFFER_TOO_SMALL"},
           {KDTREE_IO_ERROR, "KDTREE_IO_ERROR"},
           {KDTREE_CUDA_ERROR, "KDTREE_CUDA_ERROR"},
           {KDTREE_INTERNAL_ERROR, "KDTREE_INTERNAL_ERROR"},
           {-5, "KDTREE_UNKNOWN_STATUS"}}) {
    EXPECT_EQ(kdtree_status_name(code), name);
  }
}

TEST(Abi, BlocksOfOtherSizes) {
  kdtree_tree_validate_params p = chain_of_two();
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_OK);
  EXPECT_EQ(kdtree_tree_validate(nullptr), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "params is null, expected a parameter block");

  for (const uint32_t size : {0u, 8u, 15u, 20u, 4097u, 4104u}) {
    p.struct_size = size;
    EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_STRUCT);
    EXPECT_EQ(last_error(), "struct_size is " + std::to_string(size) + ", expected " +
                                std::to_string(sizeof(p)) + " (use KDTREE_INIT)");
  }

  // An older caller's block ends before `batch`: no requests, whatever lies behind it.
  p = chain_of_two();
  p.struct_size = offsetof(kdtree_tree_validate_params, batch);
  p.batch = -77;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_OK);

  // A newer caller's block: fine while what it adds is zero.
  struct Newer {
    kdtree_tree_validate_params known;
    int64_t added;
  } newer{chain_of_two(), 0};
  newer.known.struct_size = sizeof(newer);
  EXPECT_EQ(kdtree_tree_validate(&newer.known), KDTREE_OK);
  newer.added = 256;
  EXPECT_EQ(kdtree_tree_validate(&newer.known), KDTREE_UNSUPPORTED);
  EXPECT_NE(last_error().find("byte " + std::to_string(sizeof(p) + 1) + " is set"), std::string::npos);

  p = chain_of_two();
  p.flags = 4;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_STRUCT);
  EXPECT_EQ(last_error(), "flags is 4, expected 0");
  p = chain_of_two();
  p.next = &p;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_STRUCT);
}

TEST(Abi, MessagesAreCutAndKept) {
  kdtree_tree_validate_params p = chain_of_two();
  p.flags = 4;
  ASSERT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_STRUCT);
  char buffer[8];
  std::memset(buffer, 'x', sizeof(buffer));
  EXPECT_EQ(kdtree_last_error(buffer, 6), std::strlen("flags is 4, expected 0"));
  EXPECT_STREQ(buffer, "flags");
  EXPECT_EQ(buffer[6], 'x');
  p.flags = 0;
  ASSERT_EQ(kdtree_tree_validate(&p), KDTREE_OK);
  EXPECT_EQ(last_error(), "flags is 4, expected 0");
}

TEST(Abi, ThreadsHaveTheirOwnMessages) {
  constexpr uint32_t kThreads = 8;
  std::vector<std::string> seen(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t n = 0; n < kThreads; ++n) {
    threads.emplace_back([&seen, n] {
      EXPECT_EQ(kdtree_last_error(nullptr, 0), 0u);
      for (int round = 0; round < 200; ++round) {
        kdtree_tree_validate_params p = chain_of_two();
        p.flags = n + 1;
        kdtree_tree_validate(&p);
        seen[n] = last_error();
        if (seen[n] != "flags is " + std::to_string(n + 1) + ", expected 0") return;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (uint32_t n = 0; n < kThreads; ++n) {
    EXPECT_EQ(seen[n], "flags is " + std::to_string(n + 1) + ", expected 0");
  }
}

// The first calls of a process choose the SIMD target: from many threads at once (for the thread sanitizer).
TEST(Abi, ConcurrentCallsAgree) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 7919) % 5003);
  std::vector<std::vector<int32_t>> results(6, std::vector<int32_t>(8));
  std::vector<std::thread> threads;
  for (auto& tokens : results) {
    threads.emplace_back([&logits, &tokens] {
      std::vector<float> log_probs(8);
      auto p = KDTREE_INIT(kdtree_top_k_params);
      p.logits = logits.data();
      p.rows = 1;
      p.logits_dtype = KDTREE_DTYPE_F32;
      p.vocab = 5000;
      p.k = 8;
      p.tokens = tokens.data();
      p.log_probs = log_probs.data();
      testing::Workspace workspace(kdtree_top_k_workspace_size, p);
      EXPECT_EQ(kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const auto& tokens : results)
    EXPECT_EQ(tokens, results[0]);
}

TEST(Abi, BackendsAreListed) {
  std::set<std::string> names;
  for (int32_t i = 0; i < kdtree_backend_count(); ++i) {
    auto info = KDTREE_INIT(kdtree_backend_info);
    ASSERT_EQ(kdtree_get_backend_info(i, &info), KDTREE_OK);
    names.insert(info.name);
    EXPECT_EQ(info.available, info.backend == KDTREE_BACKEND_ORACLE || info.backend == KDTREE_BACKEND_CPU);
    EXPECT_NE(info.reason[0], '\0');
  }
  EXPECT_EQ(names, (std::set<std::string>{"oracle", "cpu", "cuda-naive", "cuda-flash", "cuda-flash-paged",
                                          "cuda-sm90"}));
  auto info = KDTREE_INIT(kdtree_backend_info);
  EXPECT_EQ(kdtree_get_backend_info(kdtree_backend_count(), &info), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(kdtree_get_backend_info(-1, &info), KDTREE_INVALID_ARGUMENT);
  // An older caller's shorter block is not written past its end.
  info = KDTREE_INIT(kdtree_backend_info);
  info.struct_size = offsetof(kdtree_backend_info, reason);
  std::memset(info.reason, 'x', sizeof(info.reason));
  ASSERT_EQ(kdtree_get_backend_info(0, &info), KDTREE_OK);
  EXPECT_STREQ(info.name, "oracle");
  EXPECT_EQ(info.reason[0], 'x');
}

}  // namespace
}  // namespace kdtree
