// Many matrices that are repacked one after another, while the caller still does other things.
//
// A thread of its own begins with the first matrix as soon as it is there. Who needs them all helps with what is left.
// A matrix that is done gives the memory of the file's pages back: the file has them, and a model is little more than it.
#pragma once
#include <sys/mman.h>
#include <deque>
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
        matrices_.emplace_back(repack, w, rows);
        pages_.emplace_back(pages, pages + count);
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
                for (RepackedMatrix& matrix : matrices_) matrix.work(thread, threads_);
            },
            own);
        if (helper_.joinable()) helper_.join();
        else
            for (const auto& pages : pages_) give_back(pages);
        for (size_t i = 0; i < matrices_.size(); i++)
            if (!matrices_[i].finite()) return (int64_t)i;
        return -1;
    }

  private:
    void help() {
        for (size_t i = 0;; i++) {
            pthread_mutex_lock(&lock_);
            while (i == matrices_.size() && !closed_) pthread_cond_wait(&more_, &lock_);
            const bool end = i == matrices_.size() || abandoned_;
            RepackedMatrix* matrix = end ? nullptr : &matrices_[i];  // which stays where it is when more are added
            const std::vector<MappedPages> pages = end ? std::vector<MappedPages>() : pages_[i];
            pthread_mutex_unlock(&lock_);
            if (end) return;
            matrix->work(threads_ - 1, threads_);
            give_back(pages);
        }
    }
    void close() {
        pthread_mutex_lock(&lock_);
        closed_ = true;
        pthread_mutex_unlock(&lock_);
        pthread_cond_signal(&more_);
    }
    static void give_back(const std::vector<MappedPages>& pages) {
        for (const MappedPages& some : pages) madvise(some.first, (size_t)some.bytes, MADV_DONTNEED);
    }

    const int threads_;
    std::deque<RepackedMatrix> matrices_;
    std::deque<std::vector<MappedPages>> pages_;
    bool closed_ = false;
    std::atomic<bool> abandoned_{false};
    // those of C: see ThreadPool
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t more_ = PTHREAD_COND_INITIALIZER;
    std::thread helper_;  // begins last, and finds the rest ready
};

}  // namespace vantage
