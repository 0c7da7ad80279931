// Many matrices that are repacked one after another, while the caller still does other things.
//
// A thread of its own begins with the first matrix as soon as it is there. Who needs them all helps with what is left.
// A matrix that is done gives the memory of the file's pages back: the file has them, and a model is little more than it.
#pragma once
#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <memory>
#include <system_error>
#include <vector>
#include "formats.h"
#include "threads.h"

namespace vantage {

struct MappedPages {
    void* first;
    int64_t bytes;
};

// The outputs of a matrix, each from its row; false: a scale is not finite.
using RepackRows = bool(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end);

// Has the system provide the whole pages of this memory, which keep what they hold. A piece at a time: others who allocate
// memory wait for it.
inline void prefault(char* first, int64_t bytes) {
#if defined(__linux__)
    constexpr int POPULATE_WRITE = 23;  // MADV_POPULATE_WRITE, of Linux 5.14; older systems refuse it
    constexpr int64_t PIECE = 1 << 18;
    const int64_t page = sysconf(_SC_PAGESIZE);
    char* const end = first + bytes;
    for (char* at = first + (page - (intptr_t)first % page) % page; end - at >= page; at += PIECE)
        if (madvise(at, std::min(PIECE, (end - at) / page * page), POPULATE_WRITE)) return;
#endif
}

class RepackedMatrix {
  public:
    RepackedMatrix(RepackRows* repack, const Matrix& w, const uint8_t* const* rows) : repack_(repack), w_(w), rows_(rows) {}
    // Returns when all of it is done, by whomever. Of so many that may come, ``thread`` is this one.
    void work(int thread, int threads) {
        constexpr int64_t PIECE = SUPER * LANES;  // rows
        const int64_t all = (w_.outputs + LANES - 1) / LANES * LANES;
        progress_.share((int)((all + PIECE - 1) / PIECE), thread, threads, [&](int task) {
            if (!repack_(rows_, w_, task * PIECE, std::min(all, (task + 1) * PIECE))) finite_ = false;
        });
    }
    bool finite() const { return finite_; }

  private:
    RepackRows* repack_;
    Matrix w_;
    const uint8_t* const* rows_;
    Progress progress_;
    std::atomic<bool> finite_{true};
};

class Repacking {
  public:
    explicit Repacking(int threads) : threads_(threads) {
        if (threads_ < 2) return;
        try {
            helper_ = std::thread([this] { help(); });
        } catch (const std::system_error&) {  // no more threads: who needs the matrices does all
        }
    }
    ~Repacking() {
        abandoned_ = true;
        close();
        if (helper_.joinable()) helper_.join();
        pthread_cond_destroy(&more_), pthread_mutex_destroy(&lock_);
    }

    // The rows must stay where they are until all is done, and so must what they point to.
    void add(RepackRows* repack, const Matrix& w, const uint8_t* const* rows, const MappedPages* pages, int64_t count) {
        pthread_mutex_lock(&lock_);
        jobs_.emplace_back(new Job{{repack, w, rows}, {pages, pages + count}});
        pthread_mutex_unlock(&lock_);
        pthread_cond_signal(&more_);
    }

    // No more will come. -1: all are done; else the first one that has a scale that is not finite.
    template <class RunOnThreads>
    int64_t finish(RunOnThreads&& run_on_threads) {
        close();
        const int own = helper_.joinable() ? threads_ - 1 : threads_;
        run_on_threads(
            [&](int thread) {
                for (const auto& job : jobs_) job->matrix.work(thread, threads_);
            },
            own);
        if (helper_.joinable()) helper_.join();
        else
            for (const auto& job : jobs_) give_back(job->pages);
        for (size_t i = 0; i < jobs_.size(); i++)
            if (!jobs_[i]->matrix.finite()) return (int64_t)i;
        return -1;
    }

  private:
    struct Job {
        RepackedMatrix matrix;
        std::vector<MappedPages> pages;
    };

    void help() {
        for (size_t i = 0;; i++) {
            pthread_mutex_lock(&lock_);
            while (i == jobs_.size() && !closed_) pthread_cond_wait(&more_, &lock_);
            Job* const job = i == jobs_.size() || abandoned_ ? nullptr : jobs_[i].get();
            pthread_mutex_unlock(&lock_);
            if (job == nullptr) return;
            job->matrix.work(threads_ - 1, threads_);
            give_back(job->pages);
        }
    }
    void close() {
        pthread_mutex_lock(&lock_);
        closed_ = true;
        pthread_mutex_unlock(&lock_);
        pthread_cond_signal(&more_);
    }
#if defined(_WIN32)
    static void give_back(const std::vector<MappedPages>&) {}  // the system takes them when it needs memory
#else
    static void give_back(const std::vector<MappedPages>& pages) {
        for (const MappedPages& some : pages) madvise(some.first, (size_t)some.bytes, MADV_DONTNEED);
    }
#endif

    const int threads_;
    // each stays where it is when more are added; a deque would need a newer C++ library than older systems have
    std::vector<std::unique_ptr<Job>> jobs_;
    bool closed_ = false;
    std::atomic<bool> abandoned_{false};
    // those of C: see ThreadPool
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t more_ = PTHREAD_COND_INITIALIZER;
    std::thread helper_;  // begins last, and finds the rest ready
};

}  // namespace vantage
