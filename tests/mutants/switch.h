// run.py includes this before a kernel file. All changes of all files are in one program, and TG_MUTANT switches one
// on. `a < b` becomes `a < tg_lt(7) > b`, which keeps its operands in any context.
#pragma once

// Whether change k is on. Not compiled for the emulator, so that it sees no access; const, so that loops keep it.
extern "C" __attribute__((const)) bool tg_mutant(int k);

template <int kKind> struct TgComparison {
  int k;
};
template <int kKind, class A> struct TgLeft {
  A a;
  int k;
};
__attribute__((always_inline)) inline TgComparison<0> tg_lt(int k) { return {k}; }  // < becomes <=
__attribute__((always_inline)) inline TgComparison<1> tg_ge(int k) { return {k}; }  // >= becomes >
__attribute__((always_inline)) inline TgComparison<2> tg_le(int k) { return {k}; }  // <= becomes <
template <int kKind, class A>
__attribute__((always_inline)) inline TgLeft<kKind, A> operator<(A a, TgComparison<kKind> c) {
  return {a, c.k};
}
template <int kKind, class A, class B> __attribute__((always_inline)) inline bool operator>(TgLeft<kKind, A> l, B b) {
  if constexpr (kKind == 0)
    return tg_mutant(l.k) ? l.a <= b : l.a < b;
  else if constexpr (kKind == 1)
    return tg_mutant(l.k) ? l.a > b : l.a >= b;
  else
    return tg_mutant(l.k) ? l.a < b : l.a <= b;
}
