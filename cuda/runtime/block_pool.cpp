#include <tapegrad/cuda/runtime/block_pool.h>

#include <algorithm>
#include <bit>

namespace tg::cuda {
namespace {
constexpr size_t kLeastLarge = 20 << 20, kMostGrowth = size_t(1) << 30;
size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
}  // namespace

size_t rounded_block(size_t bytes) {
  bytes = std::max(bytes, kBlockUnit);
  return round_up(bytes, std::clamp(std::bit_floor(bytes) / 8, kBlockUnit, kSegmentUnit));
}

Pool& BlockPool::pool_of(size_t bytes, Owner owner) {
  const bool small = rounded_block(bytes) <= kSmallMost;
  for (auto& p : pools_)
    if (p->owner == owner && p->small == small) return *p;
  return *pools_.emplace_back(new Pool{owner, small});
}
Block* BlockPool::new_block() {
  if (spare_.empty()) spare_.push_back(all_.emplace_back(new Block).get());
  Block* b = spare_.back();
  spare_.pop_back();
  *b = {};
  return b;
}
void BlockPool::insert(Block* b) {
  Pool& p = *b->pool;
  if (p.spare.empty()) {
    p.free.insert(b);
    return;
  }
  p.spare.back().value() = b;
  p.free.insert(std::move(p.spare.back()));
  p.spare.pop_back();
}
void BlockPool::erase(Block* b) { b->pool->spare.push_back(b->pool->free.extract(b)); }

Block* BlockPool::take(size_t bytes, Owner owner) {
  const size_t size = rounded_block(bytes);
  Pool& p = pool_of(bytes, owner);
  const auto found = p.free.lower_bound(size);
  if (found == p.free.end()) return nullptr;
  Block* b = *found;
  erase(b);
  if (b->bytes - size >= (p.small ? kBlockUnit : kSmallMost)) {
    Block* rest = new_block();
    *rest = {.at = b->at + size, .bytes = b->bytes - size, .pool = &p, .before = b, .after = b->after};
    if (rest->after) rest->after->before = rest;
    b->after = rest;
    b->bytes = size;
    insert(rest);
  }
  b->in_use = true;
  in_use_ += b->bytes;
  if (used_nodes_.empty()) {
    used_.emplace(b->at, b);
  } else {
    auto& node = used_nodes_.back();
    node.key() = b->at;
    node.mapped() = b;
    used_.insert(std::move(node));
    used_nodes_.pop_back();
  }
  return b;
}

void BlockPool::absorb(Block* left, Block* right) {
  left->bytes += right->bytes;
  left->after = right->after;
  if (left->after) left->after->before = left;
  spare_.push_back(right);
}
void BlockPool::give(Block* b) {
  used_nodes_.push_back(used_.extract(b->at));
  in_use_ -= b->bytes;
  b->in_use = false;
  if (Block* next = b->after; next && !next->in_use) {
    erase(next);
    absorb(b, next);
  }
  if (Block* previous = b->before; previous && !previous->in_use) {
    erase(previous);
    absorb(previous, b);
    b = previous;
  }
  insert(b);
}
Block* BlockPool::find(const void* p) const {
  const auto it = used_.find(p);
  return it == used_.end() ? nullptr : it->second;
}

size_t BlockPool::least_segment(size_t bytes) { return round_up(rounded_block(bytes), kSegmentUnit); }
size_t BlockPool::next_segment(size_t bytes, Owner owner) {
  const Pool& p = pool_of(bytes, owner);
  const size_t growth = std::min(round_up(p.segment_bytes / 4, kSegmentUnit), kMostGrowth);
  return std::max({least_segment(bytes), p.small ? kSegmentUnit : kLeastLarge, growth});
}
void BlockPool::add_segment(void* at, size_t bytes, size_t for_bytes, Owner owner) {
  Block* b = new_block();
  Pool& p = pool_of(for_bytes, owner);
  *b = {.at = static_cast<std::byte*>(at), .bytes = bytes, .pool = &p};
  p.segment_bytes += bytes;
  reserved_ += bytes;
  ++segments_;
  insert(b);
}
std::vector<void*> BlockPool::release() {
  std::vector<void*> released;
  for (auto& p : pools_)
    for (auto it = p->free.begin(); it != p->free.end();) {
      Block* b = *it;
      if (b->before || b->after) {
        ++it;
        continue;
      }
      released.push_back(b->at);
      p->segment_bytes -= b->bytes;
      reserved_ -= b->bytes;
      --segments_;
      it = p->free.erase(it);
      spare_.push_back(b);
    }
  return released;
}
size_t BlockPool::largest_free() const {
  size_t most = 0;
  for (auto& p : pools_)
    if (!p->free.empty()) most = std::max(most, (*p->free.rbegin())->bytes);
  return most;
}

}  // namespace tg::cuda
