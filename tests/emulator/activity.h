#pragma once
#include <cstdint>
#include <source_location>

namespace simt::engine {

struct Operation;

extern bool recording_activity;
void call_begins(const std::source_location&);
void call_ends();
std::uint32_t call_now();  // current call's number, or 0
std::uint64_t activity_clock();
void operation_ran(const Operation&, std::uint64_t begin);
std::uint64_t new_node();
std::uint64_t clone_of(std::uint64_t node);

}  // namespace simt::engine
