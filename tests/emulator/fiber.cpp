#include <sys/mman.h>

#include <tapegrad/emulator/internal.h>

// A section separates builtins from shared variables.
#define SIMT_BUILTIN __attribute__((section("simt_builtin")))
SIMT_BUILTIN uint3 threadIdx, blockIdx;
SIMT_BUILTIN dim3 blockDim, gridDim;

#ifndef __x86_64__
#error "write simt_switch for this processor"
#endif
// Saves callee-saved registers and switches stacks.
extern "C" void simt_switch(void** save, void* load);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");

namespace simt::engine {
namespace {

void* scheduler_sp;

void fiber_main() {
  launch_now->call.run(launch_now->call.self.get());
  finish_thread();
  to_scheduler();
  __builtin_unreachable();
}

char* new_stack() {  // the guard page is below the stack
  constexpr std::size_t guard = 4096;
  void* p =
      mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mprotect(p, guard, PROT_NONE);
  return static_cast<char*>(p) + guard;
}

}  // namespace

void prepare(Thread& t, unsigned index) {
  if (!t.stack) t.stack = new_stack();
  // Stacks begin in different cache sets.
  void** top = reinterpret_cast<void**>(t.stack + stack_bytes - index % 32 * 128);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  t.sp = top;
  t.index = index;
  const dim3 d = blockDim;
  t.id = {index % d.x, index / d.x % d.y, index / (d.x * d.y)};
  t.state = Thread::ready;
  t.waits = "";
  t.frame = nullptr;
  t.copies.clear();
  t.group = 0;
  t.products.clear();
  t.saved.clear();
  t.fenced = false;
}

void resume(Thread& t) {
  current = &t;
  threadIdx = t.id;
  ++counters.switches;
  simt_switch(&scheduler_sp, t.sp);
  current = nullptr;
}

void to_scheduler() { simt_switch(&current->sp, scheduler_sp); }

}  // namespace simt::engine
