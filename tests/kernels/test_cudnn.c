/* Tests layouts of tensors for cuDNN attention, and error messages, without a GPU. */
#include <string.h>

#include "common/half.h"
#include "kernels/rivals/cudnn.h"
#include "unit.h"

TEST(packed_is_plain)
{
    kvd_cudnn_shape s = {
        .batch = 1, .n_heads = 6, .n_kv_heads = 2, .d_qk = 48, .d_v = 80, .q_len = 5, .kv_len = 9};
    kvd_cudnn_packed(&s);
    assert_int_equal(s.q.token, 48);
    assert_int_equal(s.q.head, 5 * 48);
    assert_int_equal(s.k.head, 9 * 48);
    assert_int_equal(s.v.token, 80);
    assert_int_equal(s.v.batch, 2 * 9 * 80);
    assert_int_equal(s.o.batch, 6 * 5 * 80);
}

TEST(failures_say_why)
{
    kvd_cudnn_shape s = {.dtype = KVD_BF16,
                         .batch = 1,
                         .n_heads = 3,
                         .n_kv_heads = 2,
                         .d_qk = 64,
                         .d_v = 64,
                         .q_len = 4,
                         .kv_len = 4,
                         .scale = 1.0F};
    kvd_cudnn_plan *plan = (kvd_cudnn_plan *)&s;
    kvd_err err = {""};
    kvd_cudnn_packed(&s);
    assert_int_equal(kvd_cudnn_open(&s, &plan, &err), -1);
    assert_null(plan);
    assert_int_equal(strncmp(err.msg, "cuDNN: ", 7), 0);
    assert_true(strstr(err.msg, "built without") || strstr(err.msg, "3 heads, 2 kv heads"));
    kvd_cudnn_close(NULL);
}

TEST_MAIN(NULL, NULL)
