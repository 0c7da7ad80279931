// Threads that work through the same stages together.
//
// A stage is cut into pieces, which whoever is free takes from counters: a thread that is held up by another process
// costs the piece it holds and no more. The next stage begins when all pieces are done; who waits spins briefly and
// then sleeps.
//
// The threads are torch's own where it uses OpenMP: threads of ours beside them would share their cores with torch's,
// which spin for milliseconds after every operator. Elsewhere they are ours.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vantage {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class alignas(64) Progress {  // of one stage
  public:
    // Takes pieces until there are none, and returns when all are done.
    template <class Work>
    void share(int pieces, int thread, int threads, Work&& work) {
        take(pieces, thread, threads, [&](int piece, int) { work(piece); });
        wait(pieces);
    }
    // Takes pieces until there are none. A thread begins with a range of its own, so that what it asks for ahead is what
    // it will read, and then takes from the others'.
    template <class Work>
    void take(int pieces, int thread, int threads, Work&& work) {
        const int ranges = ranges_of(threads);
        for (int k = 0; k < ranges; k++) {
            const int range = (thread + k) % ranges, end = first_of(range + 1, pieces, threads);
            const int first = first_of(range, pieces, threads);
            for (int piece; (piece = first + next_[range].fetch_add(1, std::memory_order_relaxed)) < end;) {
                work(piece, end);
                if (done_.fetch_add(1) + 1 == pieces && asleep_.load()) wake();
            }
        }
    }
    // The first piece of a range: of a thread, as long as there are enough of them.
    static int first_of(int range, int pieces, int threads) {
        return (int)((int64_t)pieces * range / ranges_of(threads));
    }
    static int ranges_of(int threads) { return std::min(threads, RANGES); }
    // Returns when so many are done, and takes none.
    void wait(int pieces) {
        for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; spins++)
            spins < 2000 ? relax() : sleep(pieces);
    }

  private:
#if defined(__linux__)
    void sleep(int pieces) {
        asleep_.fetch_add(1);
        for (int done; (done = done_.load()) < pieces;)
            syscall(SYS_futex, &done_, FUTEX_WAIT_PRIVATE, done, nullptr, nullptr, 0);
        asleep_.fetch_sub(1);
    }
    void wake() { syscall(SYS_futex, &done_, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }
#else
    void sleep(int) { sched_yield(); }
    void wake() {}
#endif
    static constexpr int RANGES = 30;
    std::atomic<int> next_[RANGES]{}, done_{0}, asleep_{0};
};

using Job = std::function<void(int thread)>;

struct OpenMP {  // of the library that torch has loaded
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread)() = nullptr;

    void run(const Job& job, int count) const {
        const Team team{this, &job};
        parallel(
            [](void* data) {
                const Team& team = *(const Team*)data;
                (*team.job)(team.openmp->thread());
            },
            (void*)&team, (unsigned)count, 0);
    }

  private:
    struct Team {
        const OpenMP* openmp;
        const Job* job;
    };
};

class ThreadPool {  // never destroyed: its threads sleep in it until the process ends
  public:
    explicit ThreadPool(int threads) : threads(threads) {
        for (int i = 1; i < threads; i++) std::thread([this, i] { serve(i); }).detach();
    }
    void run(const Job& job) {
        pthread_mutex_lock(&lock_);
        job_ = &job;
        left_.store(threads - 1);
        turn_.fetch_add(1, std::memory_order_release);
        pthread_mutex_unlock(&lock_);
        pthread_cond_broadcast(&wake_);
        job(0);
        for (int spins = 0; left_.load(std::memory_order_acquire); spins++)
            spins < 2000 ? relax() : (void)sched_yield();
    }
    const int threads;

  private:
    void serve(int i) {
        for (int last_turn = 0;; last_turn++) {
            for (int spins = 0; spins < 20000 && turn_.load(std::memory_order_acquire) == last_turn; spins++) relax();
            if (turn_.load(std::memory_order_acquire) == last_turn) {
                pthread_mutex_lock(&lock_);
                while (turn_.load(std::memory_order_acquire) == last_turn) pthread_cond_wait(&wake_, &lock_);
                pthread_mutex_unlock(&lock_);
            }
            (*job_)(i);
            left_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }
    // those of C: the wait of std::condition_variable is a symbol that only newer systems have
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
    std::atomic<int> turn_{0}, left_{0};
    const Job* job_ = nullptr;
};

}  // namespace vantage
