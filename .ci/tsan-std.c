// Tells ThreadSanitizer where the standard library synchronises: the library comes compiled without it, so that what
// happens inside of these functions is invisible. The linker puts each wrapper in place of its function (--wrap); the
// names come as macros, from .ci/sanitize. All take and return at most six machine words.

void __tsan_acquire(void *address);
void __tsan_release(void *address);

typedef long word;

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WRAP(name, before, after)                                            \
  word JOIN(__real_, name)(word, word, word, word, word, word);              \
  word JOIN(__wrap_, name)(word a, word b, word c, word d, word e, word f) { \
    before;                                                                  \
    word result = JOIN(__real_, name)(a, b, c, d, e, f);                     \
    after;                                                                   \
    return result;                                                           \
  }

static void acquire(word address) { __tsan_acquire((void *)address); }
static void release(word address) { __tsan_release((void *)address); }

// The state of a lock is its first word, and of a Once and of a Barrier too, as far as the sanitizer needs to know.
WRAP(MUTEX_LOCK_CONTENDED, , acquire(a))
WRAP(RWLOCK_READ_CONTENDED, , acquire(a))
WRAP(RWLOCK_WRITE_CONTENDED, , acquire(a))
// Of the condition variable `a`; the mutex `b` is unlocked while waiting.
WRAP(CONDVAR_WAIT, release(b), acquire(b))
WRAP(CONDVAR_WAIT_TIMEOUT, release(b), acquire(b))
WRAP(BARRIER_WAIT, release(a), acquire(a))
WRAP(ONCE_CALL, , (acquire(a), release(a)))

// A scoped thread ends. Which of the three words is the count that the scope reads is up to the compiler.
static void release_scope(word address) {
  for (int index = 0; index < 3; index++) release(address + index * (word)sizeof(word));
}
WRAP(SCOPE_DECREMENT, release_scope(a), )

// Arc: whoever counts down to nothing synchronises with the others by a fence, which the sanitizer does not know. The
// count itself, made acquire and release, says the same. This holds for every 64-bit fetch_sub(Release) of the program:
// qpair has none of its own today, and one that it gets would be seen as stronger than it is; model it with loom.
long __real___tsan_atomic64_fetch_sub(volatile long *count, long by, int order);
long __wrap___tsan_atomic64_fetch_sub(volatile long *count, long by, int order) {
  enum { RELEASE = 3, ACQUIRE_RELEASE = 4 };
  return __real___tsan_atomic64_fetch_sub(count, by, order == RELEASE ? ACQUIRE_RELEASE : order);
}
