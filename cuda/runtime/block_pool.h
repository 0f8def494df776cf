// Splits segments into blocks, merges adjacent free ones. No CUDA, no locks, no access to the memory.
#pragma once
#include <tapegrad/core/error.h>
#include <tapegrad/core/scope.h>

#include <cstddef>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

namespace tg::cuda {

using Owner = const void*;

struct Block {
  std::byte* at = nullptr;
  size_t bytes = 0;  // a multiple of kBlockUnit
  struct Pool* pool = nullptr;
  Block *before = nullptr, *after = nullptr;
  bool in_use = false;
  // Requested bytes, for messages.
  size_t asked = 0;
  std::string_view op = {};
  const Scope* scope = nullptr;
  const std::string* label = nullptr;
};

inline constexpr size_t kBlockUnit = 512;  // alignment and granularity
inline constexpr size_t kSmallMost = 1 << 20;
inline constexpr size_t kSegmentUnit = 2 << 20;  // granularity of cudaMalloc

// At most 1/8 and 2 MiB above the request: similar sizes share blocks.
size_t rounded_block(size_t bytes);

struct BestFit {  // smallest, then lowest address
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->at < b->at;
  }
  bool operator()(const Block* a, size_t bytes) const { return a->bytes < bytes; }
  bool operator()(size_t bytes, const Block* b) const { return bytes < b->bytes; }
};
struct Pool {
  Owner owner;
  bool small;
  std::set<Block*, BestFit> free = {};
  // Spare nodes: the set allocates nothing.
  std::vector<std::set<Block*, BestFit>::node_type> spare = {};
  size_t segment_bytes = 0;
};

class BlockPool {
 public:
  Block* take(size_t bytes, Owner);
  void give(Block*);
  Block* find(const void*) const;  // null unless in use

  // Grows with the owner's memory; at least least_segment().
  size_t next_segment(size_t bytes, Owner);
  static size_t least_segment(size_t bytes);
  void add_segment(void*, size_t bytes, size_t for_bytes, Owner);
  std::vector<void*> release();

  size_t segments() const { return segments_; }
  size_t reserved() const { return reserved_; }
  size_t in_use() const { return in_use_; }  // rounded bytes in use
  size_t largest_free() const;
  template <class F> void each_in_use(F f) const {
    for (const auto& entry : used_) f(*entry.second);
  }

 private:
  Pool& pool_of(size_t bytes, Owner);
  Block* new_block();
  void insert(Block*);
  void erase(Block*);
  void absorb(Block* left, Block* right);

  std::vector<std::unique_ptr<Pool>> pools_;
  std::unordered_map<const void*, Block*> used_;
  std::vector<decltype(used_)::node_type> used_nodes_;  // spare nodes
  std::vector<std::unique_ptr<Block>> all_;
  std::vector<Block*> spare_;
  size_t segments_ = 0, reserved_ = 0, in_use_ = 0;
};

}  // namespace tg::cuda
