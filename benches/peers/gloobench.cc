// Times one operation of Gloo over a range of sizes: see collbench.h. Gloo has no launcher; Open MPI's starts the ranks here,
// which share a file system. They meet in a folder of the job's name beside the program, which is gone in the end.
//
//   c++ -O2 -o gloobench gloobench.cc -lgloo
//   mpirun.openmpi -n 2 -x GLOO_SOCKET_IFNAME=lo gloobench allreduce 1024 67108864 4 0.2
//
// Operations: allreduce, allreduce_in_place, reduce_scatter (in place), allgather, alltoall, bcast.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <sys/stat.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>

#include "collbench.h"

static std::shared_ptr<gloo::rendezvous::Context> context;

static void barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
}

template <typename T>
static void all_reduce(T *from, T *to, size_t count, void (*reduce)(void *, const void *, const void *, size_t)) {
    gloo::AllreduceOptions options(context);
    if (from != to) options.setInput(from, count);
    options.setOutput(to, count);
    options.setReduceFunction(reduce);
    gloo::allreduce(options);
}

static double slowest(double mine) {
    double greatest;
    all_reduce<double>(&mine, &greatest, 1, gloo::max<double>);
    return greatest;
}

// At once, as Gloo's threads go on; Open MPI answers by ending the other ranks.
static void end_all() { std::quick_exit(1); }

// ---- the operations ----

static void allreduce(size_t bytes) { all_reduce<float>(input, output, whole(bytes), gloo::sum<float>); }

static void allreduce_in_place(size_t bytes) { all_reduce<float>(output, output, whole(bytes), gloo::sum<float>); }

// An algorithm that is made for a buffer and a size, once, and then run.
static void reduce_scatter(size_t bytes) {
    static std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> made;
    static size_t made_for = 0;
    if (made_for != bytes) {
        made.reset();
        made = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
            context, std::vector<float *>{output}, blocks(bytes), std::vector<int>(ranks, block(bytes)));
        made_for = bytes;
    }
    made->run();
}

static void allgather(size_t bytes) {
    gloo::AllgatherOptions options(context);
    options.setInput(input, block(bytes));
    options.setOutput(output, blocks(bytes));
    gloo::allgather(options);
}

static void alltoall(size_t bytes) {
    gloo::AlltoallOptions options(context);
    options.setInput(input, blocks(bytes));
    options.setOutput(output, blocks(bytes));
    gloo::alltoall(options);
}

static void bcast(size_t bytes) {
    gloo::BroadcastOptions options(context);
    options.setOutput(output, whole(bytes));
    options.setRoot(root);
    gloo::broadcast(options);
    next_root();
}

static const struct kind kinds[] = {
    {"allreduce", allreduce, summed, whole, 0, 1},
    {"allreduce_in_place", allreduce_in_place, summed, whole, 1, 1},
    {"reduce_scatter", reduce_scatter, own_sum, block, 1, 1},
    {"allgather", allgather, gathered, blocks, 0, 1},
    {"alltoall", alltoall, turned, blocks, 0, 1},
    {"bcast", bcast, from_root, whole, 1, 1},
    {NULL, NULL, NULL, NULL, 0, 0},
};

// ---- the job ----

static std::string variable(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "gloobench: no %s in the environment; see the head of gloobench.cc\n", name);
        exit(1);
    }
    return value;
}

static void connect(const std::filesystem::path &folder) {
    mkdir(folder.c_str(), 0700); // whoever is first
    gloo::rendezvous::FileStore store(folder);
    gloo::transport::tcp::attr attributes;
    attributes.iface = variable("GLOO_SOCKET_IFNAME");
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
}

int main(int, char **argv) {
    rank = std::stoi(variable("OMPI_COMM_WORLD_RANK"));
    ranks = std::stoi(variable("OMPI_COMM_WORLD_SIZE"));
    auto program = std::filesystem::canonical("/proc/self/exe");
    std::filesystem::path folder = program.string() + "-" + variable("PMIX_NAMESPACE");
    try {
        connect(folder);
        run(kinds, argv);
        barrier();
    } catch (const std::exception &error) {
        fprintf(stderr, "gloobench: rank %d: %s\n", rank, error.what());
        return 1;
    }
    if (rank == 0) std::filesystem::remove_all(folder);
    return 0;
}
