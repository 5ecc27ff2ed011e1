// What the compiler is asked for in its own words. Macros only: the kernels' files ask before anything else.
#pragma once

// From SHF_TARGET on every function is compiled for these features. GCC's pragma lasts to the end of the file, clang's
// to SHF_TARGET_END.
#define SHF_PRAGMA(words) _Pragma(#words)
#if defined(__clang__)
#define SHF_TARGET(features) SHF_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SHF_TARGET_END SHF_PRAGMA(clang attribute pop)
#else
#define SHF_TARGET(features) SHF_PRAGMA(GCC target(features))
#define SHF_TARGET_END
#endif

// Is the matrix unit within its reach?
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 11
#define SHF_HAS_AMX 1
#endif
#endif
