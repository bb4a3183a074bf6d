/*
 * Wrappers of Hopper instructions. wgmma operands are core matrices of 8 x 16 bytes, 128 contiguous
 * bytes each, without swizzle; a descriptor has the address and two strides: `lead` along the sum,
 * `stride` along M or N.
 */
#ifndef KVD_KERNELS_CUDA_SM90_CUH
#define KVD_KERNELS_CUDA_SM90_CUH

#include "kernels/cuda/mma.cuh"

__device__ __forceinline__ uint32_t kvd_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Sleeps between polls, because polling takes issue slots from the warps that compute. */
__device__ __forceinline__ void mbar_wait_asleep(uint32_t bar, uint32_t parity)
{
    for (;;) {
        uint32_t yes;
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(yes)
                     : "r"(bar), "r"(parity)
                     : "memory");
        if (yes)
            return;
        __nanosleep(128);
    }
}

__device__ __forceinline__ void mbar_meet(uint32_t bar)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
                 "again:\n"
                 "mbarrier.try_wait.shared::cta.b64 p, [%0], state;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(bar)
                 : "memory");
}

/* Starts copying `bytes` bytes, a multiple of 16, to shared memory; mbarrier `bar` counts them. */
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes,
                                          uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void fence_mbar_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Returns true in one lane of a converged warp. */
__device__ __forceinline__ bool elect_one(void)
{
    uint32_t yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(yes));
    return yes;
}
/* Reads threadIdx.x again at each call, which saves registers. */
__device__ __forceinline__ uint32_t thread_of_group(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x % 128;
}
__device__ __forceinline__ uint32_t warp_now(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x / 32;
}
template <int N> __device__ __forceinline__ void registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Returns a wgmma descriptor; `lead` and `stride` are in bytes, multiples of 16. */
__device__ __forceinline__ uint64_t wgmma_desc(uint32_t smem, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32;
}
__device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving uses of x, an operand or result of a running wgmma. */
template <int N> __device__ __forceinline__ void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

#define R0  "%0,%1,%2,%3,%4,%5,%6,%7"
#define R1  R0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define R2  R1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R3  R2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R4  R3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define R5  R4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define R6  R5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define R7  R6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define R8  R7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define R9  R8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define R10 R9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define R11 R10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define R12 R11 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define R13 R12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define R14 R13 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define R15 R14 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define F(i)                                                                                       \
    "+f"(x[8 * i]), "+f"(x[8 * i + 1]), "+f"(x[8 * i + 2]), "+f"(x[8 * i + 3]),                    \
        "+f"(x[8 * i + 4]), "+f"(x[8 * i + 5]), "+f"(x[8 * i + 6]), "+f"(x[8 * i + 7])
#define F0  F(0)
#define F1  F0, F(1)
#define F2  F1, F(2)
#define F3  F2, F(3)
#define F4  F3, F(4)
#define F5  F4, F(5)
#define F6  F5, F(6)
#define F7  F6, F(7)
#define F8  F7, F(8)
#define F9  F8, F(9)
#define F10 F9, F(10)
#define F11 F10, F(11)
#define F12 F11, F(12)
#define F13 F12, F(13)
#define F14 F13, F(14)
#define F15 F14, F(15)

/* Computes x [64][N] = A [64][16] B [16][N], plus x if `more`. Summed index contiguous in A, B. */
#define WGMMA_SS(N, R, FS, A, B, P)                                                                \
    template <bool BF16>                                                                           \
    __device__ __forceinline__ void wgmma_ss(float(&x)[N / 2], uint64_t a, uint64_t b, int more)   \
    {                                                                                              \
        if constexpr (BF16)                                                                        \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" R "}, " A    \
                         ", " B ", p, 1, 1, 0, 0;\n}\n"                                            \
                         : FS                                                                      \
                         : "l"(a), "l"(b), "r"(more));                                             \
        else                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" R "}, " A      \
                         ", " B ", p, 1, 1, 0, 0;\n}\n"                                            \
                         : FS                                                                      \
                         : "l"(a), "l"(b), "r"(more));                                             \
    }
WGMMA_SS(80, R4, F4, "%40", "%41", "%42")
WGMMA_SS(96, R5, F5, "%48", "%49", "%50")
WGMMA_SS(112, R6, F6, "%56", "%57", "%58")
WGMMA_SS(128, R7, F7, "%64", "%65", "%66")
WGMMA_SS(256, R15, F15, "%128", "%129", "%130")
#undef WGMMA_SS

/* Computes x [64][N] += A [64][16] B [16][N]. A: registers; B: summed index contiguous. */
#define WGMMA_RS(N, R, FS, A0, A1, A2, A3, B)                                                      \
    template <bool BF16>                                                                           \
    __device__ __forceinline__ void wgmma_rs(float(&x)[N / 2], uint32_t a0, uint32_t a1,           \
                                             uint32_t a2, uint32_t a3, uint64_t b)                 \
    {                                                                                              \
        if constexpr (BF16)                                                                        \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" R "}, {" A0  \
                         "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 1;\n}\n"                         \
                         : FS                                                                      \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                            \
        else                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" R "}, {" A0    \
                         "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 1;\n}\n"                         \
                         : FS                                                                      \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                            \
    }
WGMMA_RS(16, R0, F0, "%8", "%9", "%10", "%11", "%12")
WGMMA_RS(32, R1, F1, "%16", "%17", "%18", "%19", "%20")
WGMMA_RS(48, R2, F2, "%24", "%25", "%26", "%27", "%28")
WGMMA_RS(64, R3, F3, "%32", "%33", "%34", "%35", "%36")
WGMMA_RS(80, R4, F4, "%40", "%41", "%42", "%43", "%44")
WGMMA_RS(96, R5, F5, "%48", "%49", "%50", "%51", "%52")
WGMMA_RS(112, R6, F6, "%56", "%57", "%58", "%59", "%60")
WGMMA_RS(128, R7, F7, "%64", "%65", "%66", "%67", "%68")
WGMMA_RS(192, R11, F11, "%96", "%97", "%98", "%99", "%100")
WGMMA_RS(256, R15, F15, "%128", "%129", "%130", "%131", "%132")
#undef WGMMA_RS
#undef F
#undef F0
#undef F1
#undef F2
#undef F3
#undef F4
#undef F5
#undef F6
#undef F7
#undef F8
#undef F9
#undef F10
#undef F11
#undef F12
#undef F13
#undef F14
#undef F15
#undef R0
#undef R1
#undef R2
#undef R3
#undef R4
#undef R5
#undef R6
#undef R7
#undef R8
#undef R9
#undef R10
#undef R11
#undef R12
#undef R13
#undef R14
#undef R15

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
