// Threads that run one job together and wait for each other between its steps.
//
// They are torch's own where it uses OpenMP: threads of ours beside them would share their cores with torch's, which
// spin for milliseconds after every operator. Elsewhere they are ours, and spin briefly before they sleep.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace vantage {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

class Barrier {
  public:
    void wait(int n) {
        if (n == 1) return;
        const int phase = phase_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++)
            spins < 20000 ? relax() : (void)sched_yield();  // whoever we wait for may need this core
    }

  private:
    std::atomic<int> arrived_{0}, phase_{0};
};

using Job = std::function<void(int thread, int threads)>;

struct OpenMP {  // of the library that torch has loaded
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread)() = nullptr;
    int (*threads)() = nullptr;

    void run(const Job& job, int count) const {
        const Team team{this, &job};
        parallel(
            [](void* data) {
                const Team& team = *(const Team*)data;
                (*team.job)(team.openmp->thread(), team.openmp->threads());
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
        {
            std::lock_guard<std::mutex> hold(lock_);
            job_ = &job;
            left_.store(threads - 1);
            turn_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job(0, threads);
        while (left_.load(std::memory_order_acquire)) relax();
    }
    const int threads;

  private:
    void serve(int i) {
        for (int last_turn = 0;; last_turn++) {
            for (int spins = 0; spins < 20000 && turn_.load(std::memory_order_acquire) == last_turn; spins++) relax();
            if (turn_.load(std::memory_order_acquire) == last_turn) {
                std::unique_lock<std::mutex> hold(lock_);
                wake_.wait(hold, [&] { return turn_.load(std::memory_order_acquire) != last_turn; });
            }
            (*job_)(i, threads);
            left_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }
    std::mutex lock_;
    std::condition_variable wake_;
    std::atomic<int> turn_{0}, left_{0};
    const Job* job_ = nullptr;
};

}  // namespace vantage
