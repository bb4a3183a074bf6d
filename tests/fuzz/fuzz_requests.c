/* Fuzzes readers of text files: traces of requests, items of benchmarks, documents, and tables of
 * papers. Accepted requests must be valid and in order of arrival. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evaluate/tasks/benchmark.h"
#include "kernels/timing/attn_options.h"
#include "model/text/documents.h"
#include "report/measures/ledger.h"
#include "serving/jct/spread.h"
#include "serving/requests.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static const char *const seeds[] = {
    "{\"input\": \"Text.\\nWhat?\", \"outputs\": [\"a\", 1]}\n{\"input\": \"\", \"outputs\": 2}\n",
    "{\"input\": \"q\", \"context\": \"c\", \"answers\": [\"a\"], \"dataset\": \"trec_e\","
    " \"all_classes\": [\"a\", \"b\"]}\n",
    "{\"question\": \"q\", \"choice_A\": \" a\", \"choice_B\": \"b\", \"choice_C\": \"c\","
    " \"choice_D\": \"d\", \"context\": \"c\", \"answer\": \"A\"}\n",
    "{\"task\": \"code_run\", \"input\": \"func_1(-3)\", \"context\": \"c\", \"answer\": 4,"
    " \"options\": []}\n",
    "{\"task\": \"math_find\", \"input\": \"The largest of\", \"context\": \"c\", \"answer\": 4,"
    " \"options\": []}\n",
    "{\"task\": \"longbook_choice_eng\", \"input\": \"q\", \"context\": \"c\", \"answer\": [\"x\"],"
    " \"options\": [\"x\", \"y\", \"z\", \"w\"]}\n",
    "{\"question\": \"2+2?\", \"answer\": \"#### 4\"}\n",
    "{\"task\": \"scbench_choice_eng\", \"context\": \"c\", \"multi_turns\": [{\"input\": \"q\","
    " \"answer\": \"x\", \"options\": [\"x\", \"y\", \"z\", \"w\"]}]}\n",
    "{\"context\": \"c\", \"question\": \"q\", \"answer_prefix\": \"\", \"answer\": [\"a\"],"
    " \"task\": \"niah_single_1\", \"max_new_tokens\": 8}\n",
    "{\"prompt\": \"p\", \"references\": [\"a\"], \"metric\": \"f1\", \"choices\": [\"a\"],"
    " \"max_new_tokens\": 3, \"stop\": \"\\n\", \"answer_prefix\": \"A:\", \"text\": \"b\"}\n",
    "t,model,dataset,eps_mean_abs_element,delta_mean_abs_diff\nt,M,IMDb,6.4e-2,8e-5\n"
    "t,M,arXiv,6.4e-2,1e-4\nu,model,x\nu,A,1\nu,B,2\nu,C,3\nu,D,4\nv,model,y\nv,A,1\nv,B,2\n"
    "v,C,3\nv,D,4\nend,15\n",
    "figure,title,because\nZACK Fig. 1,t,a drawing\nend,2\n",
    "id,source,claim,published_table,published_column,published_low,published_high,unit,measure,"
    "test,limit,trend_measure,trend_test,trend_limit,beside,null,setting,rule,needs,cannot\n"
    "A (1),s,c,,,1,2,%,trailing-share:k,below-null,,,,,trailing-share:v=%,1:2 w,s,r,n,\n"
    "B,s,c,,,,,%,,,,,,,,,s,r,n,no GPU\nend,3\n",
    "pair,dim,a,b\nqk,0,3,2\nqk,1,1,2\nv,0,1,1\nv,1,0,0\n",
    "d_qk,d_v\n64,48\n32,128\n",
};

/* Replaces one input in 64 by a text from array `seeds`. Then mutates the input. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    enum { N_SEEDS = sizeof seeds / sizeof *seeds, RATE = 64 };
    const char *const s = seeds[seed / RATE % N_SEEDS];
    if (seed % RATE == 0 && strlen(s) <= most)
        memcpy(data, s, size = strlen(s));
    return LLVMFuzzerMutate(data, size, most);
}

static char folder[] = "/tmp/kvdim-fuzz-XXXXXX";
static const char *const names[] = {"in.txt",      "in.jsonl",   "in.json",    "in.csv",
                                    "figures.csv", "tables.csv", "ledger.csv", "validation.jsonl"};
enum { TEXT, JSONL, JSON, CSV, VALIDATION = 7, N_FILES };
static char path[N_FILES][64];

static void remove_files(void)
{
    for (size_t i = 0; i < N_FILES; i++)
        (void)!unlink(path[i]);
    (void)!rmdir(folder);
}

/* Writes the input to one file with several names, such as in.txt and in.csv. Returns false on
 * failure. */
static bool write_files(const uint8_t *bytes, size_t len)
{
    static bool made;
    if (!made) {
        if (!mkdtemp(folder))
            abort();
        for (size_t i = 0; i < N_FILES; i++)
            (void)snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
        atexit(remove_files);
    }
    FILE *const f = fopen(path[TEXT], "wb");
    const bool whole = f && fwrite(bytes, 1, len, f) == len;
    if (f && fclose(f))
        abort();
    for (size_t i = 1; !made && i < N_FILES; i++)
        if (link(path[TEXT], path[i]))
            abort();
    made = true;
    return whole;
}

static void read_benchmark(const char *file)
{
    kvd_err err;
    for (size_t shots = 0; shots < 2; shots++) {
        const kvd_benchmark_settings s = {.metric = -1, .shots = shots};
        kvd_benchmark b = {0};
        const int status = kvd_benchmark_read(&b, file, &s, &err);
        for (size_t i = 0; !status && i < b.n; i++) {
            const kvd_benchmark_item *const x = &b.item[i];
            if (!*x->context || !x->n_turns || !x->max_new_tokens || !*x->task)
                abort();
            for (size_t t = 0; t < x->n_turns; t++)
                if (!x->turn[t].question || !x->turn[t].answer_prefix || !x->turn[t].n_references)
                    abort();
        }
        kvd_benchmark_release(&b);
    }
}

static int take_document(void *ctx, const char *text, size_t len, kvd_err *err)
{
    size_t *const sum = ctx;
    (void)err;
    for (size_t i = 0; i < len; i++)
        *sum += (unsigned char)text[i];
    return len ? 0 : (abort(), -1);
}

static void read_documents(const char *file)
{
    static const char *const fields[] = {NULL, "text,input", "id"};
    kvd_err err;
    size_t sum = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        (void)kvd_documents_read(file, kvd_documents_have_fields(file) ? fields[i] : NULL,
                                 take_document, &sum, &err);
}

static void read_tables(void)
{
    const kvd_results none = {0};
    kvd_err err;
    kvd_ledger ledger;
    kvd_published_table table = {0};
    kvd_published_twin *twins = NULL;
    kvd_published_double *doubles = NULL;
    kvd_spread spread;
    kvd_width_list widths = {.heads = {.n_kv_heads = 4, .d_head = 128}};
    char table_of[80];
    size_t n;
    if (!kvd_ledger_judge(folder, &none, &ledger, &err))
        kvd_ledger_release(&ledger);
    if (!kvd_published_load(folder, "t", &table, &err))
        (void)kvd_published_fit_of(&table);
    kvd_published_release(&table);
    if (!kvd_published_twins(folder, &twins, &n, &err))
        free(twins);
    if (!kvd_published_doubles(folder, &doubles, &n, &err))
        free(doubles);
    (void)kvd_spread_load(&spread, path[CSV], &err);
    kvd_spread_release(&spread);
    (void)kvd_width_list_parse(&widths, "--widths", path[CSV], &err);
    (void)snprintf(table_of, sizeof table_of, "%s:t", path[CSV]);
    (void)kvd_width_list_parse(&widths, "--widths", table_of, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_requests r;
    if (kvd_requests_parse(&r, "input", (const char *)bytes, len, &err) && (r.request || r.n))
        abort();
    const uint32_t most = (uint32_t)1 << 31;
    for (size_t i = 0; i < r.n; i++) {
        const kvd_request *q = &r.request[i];
        if (!isfinite(q->arrival) || q->arrival < (i ? r.request[i - 1].arrival : 0) ||
            q->input < 1 || q->output < 1 || q->input > most || q->output > most)
            abort();
    }
    kvd_requests_release(&r);
    if (!write_files(bytes, len))
        return 0;
    if (!kvd_requests_lengths(&r, path[TEXT], &err))
        kvd_requests_release(&r);
    read_benchmark(path[JSONL]);
    read_benchmark(path[JSON]);
    read_benchmark(path[VALIDATION]);
    for (size_t i = TEXT; i <= CSV; i++)
        read_documents(path[i]);
    read_tables();
    return 0;
}
