// What the emulator tells its stand-in of CUPTI (cupti.cpp): calls of the API, operations that ran, nodes of graphs.
// For the emulator's own sources; all of it under the lock of Entry.
#pragma once
#include <cstdint>
#include <source_location>

namespace simt::engine {

struct Operation;

extern bool recording_activity;  // somebody asked for records
// A call of the API, from a function of that name.
void call_begins(const std::source_location&);
void call_ends();
std::uint32_t call_now();  // the number of the call in progress, which its operations have; 0: none
// Times are of the clock that was registered with CUPTI.
std::uint64_t activity_clock();
void operation_ran(const Operation&, std::uint64_t begin);
// A node of a graph, with a number of its own; or a copy of one.
std::uint64_t new_node();
std::uint64_t clone_of(std::uint64_t node);

}  // namespace simt::engine
