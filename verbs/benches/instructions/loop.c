/* The loop of main.rs in C: RDMA WRITEs, or receives, posted and polled, a window at a time, with buffers from a free list.
 *
 *   loop DEVICE plain|extended|receive WINDOWS WINDOW
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEN = 64, DEPTH = 128, BATCH = 16, GID = 3 };

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

struct buffer {
    void *data;
    uint32_t lkey;
};

struct side {
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
};

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq, int extended) {
    struct ibv_qp_cap cap = { DEPTH, DEPTH, 4, 4, 256 };
    if (!extended) {
        struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
        return ibv_create_qp(pd, &attr);
    }
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
    };
    return ibv_create_qp_ex(pd->context, &attr);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid) {
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = GID, .hop_limit = 1 } },
    };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr) {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                                        | IBV_QP_MAX_QP_RD_ATOMIC));
}

static int post_write(const struct side *side, uint64_t wr_id, struct buffer buffer, uint64_t remote, uint32_t rkey) {
    if (side->ex) {
        ibv_wr_start(side->ex);
        side->ex->wr_id = wr_id;
        side->ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(side->ex, rkey, remote);
        ibv_wr_set_sge(side->ex, buffer.lkey, (uintptr_t)buffer.data, LEN);
        return ibv_wr_complete(side->ex);
    }
    struct ibv_sge sge = { .addr = (uintptr_t)buffer.data, .length = LEN, .lkey = buffer.lkey };
    struct ibv_send_wr *bad, wr = {
        .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { .remote_addr = remote, .rkey = rkey },
    };
    return ibv_post_send(side->qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, uint64_t wr_id, struct buffer buffer) {
    struct ibv_sge sge = { .addr = (uintptr_t)buffer.data, .length = LEN, .lkey = buffer.lkey };
    struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
    return ibv_post_recv(qp, &wr, &bad);
}

/* `receive` is known to the compiler, as in main.rs. */
static inline __attribute__((always_inline)) uint64_t repeat(
    const struct side *side, struct ibv_cq *cq, const struct ibv_mr *region, struct buffer *free_list, int windows,
    int window, const int receive) {
    /* By slot those that are posted; the others are free. */
    struct buffer slots[DEPTH];
    int free_count = window;
    uint64_t posted = 0;
    for (int turn = 0; turn < windows; turn++) {
        while (free_count > 0) {
            struct buffer buffer = free_list[--free_count];
            slots[posted % DEPTH] = buffer;
            if (receive)
                CHECK(!post_receive(side->qp, posted++, buffer));
            else
                CHECK(!post_write(side, posted++, buffer, (uintptr_t)region->addr, region->rkey));
        }
        while (free_count < window) {
            struct ibv_wc wc[BATCH];
            int count = ibv_poll_cq(cq, BATCH, wc);
            CHECK(count >= 0);
            for (int at = 0; at < count; at++) {
                CHECK(wc[at].status == IBV_WC_SUCCESS);
                free_list[free_count++] = slots[wc[at].wr_id % DEPTH];
            }
        }
    }
    return posted;
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    int extended = !strcmp(argv[2], "extended"), receive = !strcmp(argv[2], "receive");
    int windows = atoi(argv[3]), window = atoi(argv[4]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    int at = 0;
    while (list[at] && strcmp(ibv_get_device_name(list[at]), argv[1]))
        at++;
    CHECK(list[at]);
    struct ibv_context *context = ibv_open_device(list[at]);
    CHECK(context);
    ibv_free_device_list(list);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_qp *a = make(pd, cq, extended), *b = make(pd, cq, extended);
    CHECK(a && b);
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, GID, &gid));
    connect_to(a, b->qp_num, gid);
    connect_to(b, a->qp_num, gid);
    struct side side = { a, extended ? ibv_qp_to_qp_ex(a) : NULL };
    void *target = calloc(1, LEN);
    struct ibv_mr *region = ibv_reg_mr(pd, target, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(region);
    struct buffer *free_list = calloc(window, sizeof *free_list);
    for (int free_count = 0; free_count < window; free_count++) {
        void *data = calloc(1, LEN);
        struct ibv_mr *mr = ibv_reg_mr(pd, data, LEN, IBV_ACCESS_LOCAL_WRITE);
        CHECK(mr);
        free_list[free_count] = (struct buffer) { data, mr->lkey };
    }
    uint64_t posted = receive ? repeat(&side, cq, region, free_list, windows, window, 1)
                              : repeat(&side, cq, region, free_list, windows, window, 0);
    printf("%lu posted\n", posted);
    return 0;
}
