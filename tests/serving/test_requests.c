#include <math.h>
#include <string.h>
#include <unistd.h>

#include "serving/requests.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;

static void parse(kvd_requests *r, const char *text)
{
    OK(kvd_requests_parse(r, "some/t.csv", text, strlen(text), &err));
}

TEST(test_azure)
{
    kvd_requests r;
    parse(&r, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
              "2023-11-16 18:15:46.6805900,374,44\r\n"
              "2023-11-16 18:15:50.9951690,396,109\r\n"
              "2023-11-17 00:00:00.0000000,1,1\r\n"
              "2024-03-01 00:00:00,2147483648,7");
    assert_string_equal(r.name, "t.csv");
    assert_int_equal(r.n, 4);
    assert_true(r.request[0].arrival == 0);
    assert_int_equal(r.request[0].input, 374);
    assert_int_equal(r.request[0].output, 44);
    assert_true(fabs(r.request[1].arrival - 4.314579) < 1e-9);
    assert_true(fabs(r.request[2].arrival - 20653.31941) < 1e-9);
    /* The last request arrives 105 days and 20653.3 s after the first. */
    assert_true(fabs(r.request[3].arrival - (105 * 86400 + 20653.31941)) < 1e-7);
    assert_int_equal(r.request[3].input, 2147483648u);
    assert_true(fabs(kvd_requests_rate(&r) - 3 / r.request[3].arrival) < 1e-15);
    kvd_requests_faster(&r, 2);
    assert_true(fabs(r.request[1].arrival - 2.1572895) < 1e-9);
    FAILS(kvd_requests_first(&r, 9, &err), "'t.csv' holds 4 requests, fewer than the 9 asked for");
    OK(kvd_requests_first(&r, 4, &err));
    assert_int_equal(r.n_skipped, 0);
    OK(kvd_requests_first(&r, 1, &err));
    assert_int_equal(r.n, 1);
    assert_int_equal(r.n_skipped, 3);
    assert_true(kvd_requests_rate(&r) == 0);
    kvd_requests_release(&r);
    parse(&r, "Id,GeneratedTokens,ContextTokens,TIMESTAMP\n"
              "a,1,2,2024-05-10 00:00:00.25+00:00\n"
              "b,3,4,2024-05-10T02:00:01+02:00\n"
              "c,3,4,2024-05-10T00:00:02.5Z\n");
    assert_int_equal(r.request[1].input, 4);
    assert_true(r.request[1].arrival == 0.75);
    assert_true(r.request[2].arrival == 2.25);
    kvd_requests_release(&r);
    kvd_requests_release(&r);
}

TEST(test_mooncake)
{
    kvd_requests r;
    parse(
        &r,
        "{\"timestamp\": 1000, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n"
        "\n"
        "{\"output_length\": 3, \"timestamp\": 1027.5, \"input_length\": 5}");
    assert_int_equal(r.n, 2);
    assert_true(r.request[0].arrival == 0);
    assert_int_equal(r.request[0].input, 6758);
    assert_int_equal(r.request[0].output, 500);
    assert_true(fabs(r.request[1].arrival - 0.0275) < 1e-12);
    kvd_requests_release(&r);
}

TEST(test_own)
{
    kvd_requests r;
    parse(&r, "arrival_s,input_tokens,output_tokens\n0.1,10,20\n0.1,1,1\n1e1,3,4\n");
    assert_int_equal(r.n, 3);
    assert_true(r.request[0].arrival == 0.1);
    assert_true(r.request[2].arrival == 10);
    kvd_requests_release(&r);
}

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#define OWN   "arrival_s,input_tokens,output_tokens\n"

static const char *const bad[][2] = {
    {"", "'t' holds no request"},
    {OWN, "'t' holds no request"},
    {"a,b\n", "'t' row 1: no header of a trace: 'TIMESTAMP,ContextTokens,GeneratedTokens' or "
              "'arrival_s,input_tokens,output_tokens', each once"},
    {"arrival_s,input_tokens,output_tokens,arrival_s\n",
     "'t' row 1: no header of a trace: 'TIMESTAMP,ContextTokens,GeneratedTokens' or "
     "'arrival_s,input_tokens,output_tokens', each once"},
    {"num_prefill_tokens,num_decode_tokens\n3,4\n",
     "'t' row 1: lengths without arrivals: say when with poisson:RATE:FILE"},
    {OWN "0,1\n", "'t' row 2: 2 fields, the header has 3"},
    {OWN "0,1,2\n,1,2\n", "'t' row 3: arrival_s: '' is not a number"},
    {OWN "nan,1,2\n", "'t' row 2: arrival_s: 'nan' is not a number"},
    {OWN "-1,1,2\n", "'t' row 2: arrival_s: '-1' is not within 0 .. 1e+12"},
    {OWN "0,0,2\n", "'t' row 2: input_tokens: '0' is not within 1 .. 2147483648"},
    {OWN "0,1,2147483649\n",
     "'t' row 2: output_tokens: '2147483649' is not within 1 .. 2147483648"},
    {OWN "0,1,99999999999999999999\n",
     "'t' row 2: output_tokens: '99999999999999999999' is not within 1 .. 2147483648"},
    {OWN "0,1.5,2\n", "'t' row 2: input_tokens: '1.5' is not a whole number"},
    {OWN "3,1,2\n2.5,1,2\n", "'t' row 3: arrival_s: time falls, from 3 s to 2.5 s after the start"},
    {OWN "\"0,1,2\n", "'t' row 2: a double quote is out of place or has no end"},
    {AZURE "2023-11-16,1,2\n",
     "'t' row 2: TIMESTAMP: '2023-11-16' is not a time like 2023-11-16 18:15:46.68"},
    {AZURE "2023-02-29 00:00:00,1,2\n",
     "'t' row 2: TIMESTAMP: '2023-02-29 00:00:00' is not a time like 2023-11-16 18:15:46.68"},
    {AZURE "2023-02-28 24:00:00,1,2\n",
     "'t' row 2: TIMESTAMP: '2023-02-28 24:00:00' is not a time like 2023-11-16 18:15:46.68"},
    {AZURE "2023-02-28 23:00:00.,1,2\n",
     "'t' row 2: TIMESTAMP: '2023-02-28 23:00:00.' is not a time like 2023-11-16 18:15:46.68"},
    {AZURE "2023-02-28 23:00:00 UTC,1,2\n",
     "'t' row 2: TIMESTAMP: '2023-02-28 23:00:00 UTC' is not a time like 2023-11-16 18:15:46.68"},
    {"{\"timestamp\": 1, \"input_length\": 5}\n", "'t' row 1: output_length: missing"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n{\"timestamp\": 1, \"input_length\": 0, "
     "\"output_length\": 1}\n",
     "'t' row 2: input_length: '0' is not within 1 .. 2147483648"},
    {"{\"timestamp\": 1, \"input_length\": 5.0, \"output_length\": 1}\n",
     "'t' row 1: input_length: not a whole number"},
    {"{\"timestamp\": \"1\", \"input_length\": 5, \"output_length\": 1}\n",
     "'t' row 1: timestamp: not a number"},
    {"{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1}\n",
     "'t' row 1: timestamp: '-1' is not within 0 .. 1e15"},
    /* If the message is NULL, any message is accepted, because jansson's messages differ between
     * versions. */
    {"{\"timestamp\": 1, \"timestamp\": 1}\n", NULL},
    {"{]\n", NULL},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n[]\n",
     "'t' row 2: not a JSON object"},
};

TEST(test_refused)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvd_requests r;
        err.msg[0] = '\0';
        assert_int_equal(kvd_requests_parse(&r, "t", bad[i][0], strlen(bad[i][0]), &err), -1);
        if (bad[i][1])
            assert_string_equal(err.msg, bad[i][1]);
        assert_null(r.request);
        assert_int_equal(r.n, 0);
    }
    static const char zero[] = OWN "0,1\0garbage,2\n";
    kvd_requests r;
    FAILS(kvd_requests_parse(&r, "t", zero, sizeof zero - 1, &err),
          "'t' row 2: field 2 has a zero byte");
    assert_int_equal(kvd_requests_read(&r, "/nowhere/t.csv", &err), -1);
    assert_non_null(strstr(err.msg, "/nowhere/t.csv"));
    assert_int_equal(kvd_requests_read(&r, "/tmp", &err), -1);
}

TEST(test_poisson)
{
    kvd_requests r, twice, other;
    const size_t n = 100000;
    OK(kvd_requests_poisson(&r, 2.5, n, "fixed:100:20", 7, &err));
    assert_string_equal(r.name, "poisson:2.5 of fixed:100:20");
    double sum = 0, square = 0, before = 0;
    for (size_t i = 0; i < n; i++) {
        const double gap = r.request[i].arrival - before;
        assert_true(gap >= 0);
        assert_int_equal(r.request[i].input, 100);
        assert_int_equal(r.request[i].output, 20);
        sum += gap;
        square += gap * gap;
        before = r.request[i].arrival;
    }
    /* Exponentially distributed gaps between arrivals have a standard deviation equal to their
     * mean. */
    const double mean = sum / (double)n, sd = sqrt(square / (double)n - mean * mean);
    assert_true(fabs(mean - 0.4) < 4 * 0.4 / sqrt((double)n));
    assert_true(fabs(sd - 0.4) < 8 * 0.4 / sqrt((double)n));
    OK(kvd_requests_poisson(&twice, 5, n, "fixed:100:20", 7, &err));
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(twice.request[i].arrival * 2 - r.request[i].arrival) <=
                    1e-12 * r.request[i].arrival);
    OK(kvd_requests_poisson(&other, 5, n, "fixed:100:20", 8, &err));
    assert_true(other.request[0].arrival != twice.request[0].arrival);
    kvd_requests_release(&r);
    kvd_requests_release(&twice);
    kvd_requests_release(&other);
    FAILS(kvd_requests_poisson(&r, 1, 3, "fixed:100", 8, &err),
          "lengths 'fixed:100' are not 'fixed:INPUT:OUTPUT'");
    FAILS(kvd_requests_poisson(&r, 1, 3, "fixed:0:3", 8, &err),
          "fixed:INPUT: '0' is not within 1 .. 2147483648");
    assert_int_equal(kvd_requests_poisson(&r, 1, 3, "nosuch", 8, &err), -1);
    assert_non_null(strstr(err.msg, "'nosuch'"));
}

TEST(test_tables)
{
    static const struct {
        const char *name;
        double input[3], output[3];
    } published[] = {
        {"imdb", {315, 106, 821}, {37, 16, 87}},
        {"arxiv", {6300, 1600, 14100}, {243, 29, 464}},
        {"cocktail", {16200, 9400, 28800}, {159, 44, 246}},
        {"cocktail-fdc", {49700, 9400, 104900}, {159, 44, 246}},
        {"humaneval", {204, 75, 697}, {139, 11, 552}},
        {"pg19", {277, 138, 419}, {61500, 24300, 97500}},
        {"pile", {2500, 184, 19200}, {446, 252, 1100}},
        {"sharegpt", {161, 16, 3200}, {338, 19, 991}},
    };
    const size_t n = 20000;
    for (size_t t = 0; t < sizeof published / sizeof *published; t++) {
        kvd_requests r, again;
        OK(kvd_requests_poisson(&r, 1, n, published[t].name, 3, &err));
        OK(kvd_requests_poisson(&again, 9, n, published[t].name, 3, &err));
        for (int side = 0; side < 2; side++) {
            const double *want = side ? published[t].output : published[t].input;
            double sum = 0, square = 0;
            for (size_t i = 0; i < n; i++) {
                const uint32_t x = side ? r.request[i].output : r.request[i].input;
                assert_int_equal(x, side ? again.request[i].output : again.request[i].input);
                assert_true(x >= want[1] && x <= want[2]);
                sum += x;
                square += (double)x * x;
            }
            const double mean = sum / (double)n, sd = sqrt(square / (double)n - mean * mean);
            assert_true(sd > 0.02 * mean);
            assert_true(fabs(mean - want[0]) < 4 * sd / sqrt((double)n) + 0.01);
        }
        kvd_requests_release(&r);
        kvd_requests_release(&again);
    }
}

TEST(test_lengths_of_a_file)
{
    const char *const path = temp_file("x.csv");
    unit_write_text(path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
                          "3772,54,3826,69.85\n2015,156,2171,12.9\n10,20,30,0.5\n");
    kvd_requests r;
    assert_int_equal(kvd_requests_read(&r, path, &err), -1);
    OK(kvd_requests_lengths(&r, path, &err));
    assert_int_equal(r.n, 3);
    assert_true(r.request[1].arrival == 0);
    assert_int_equal(r.request[1].input, 2015);
    kvd_requests_release(&r);
    const size_t n = 30000;
    size_t count[3] = {0};
    OK(kvd_requests_poisson(&r, 1, n, path, 3, &err));
    for (size_t i = 0; i < n; i++) {
        const uint32_t in = r.request[i].input, out = r.request[i].output;
        const int which = in == 3772 && out == 54 ? 0 : in == 2015 && out == 156 ? 1 : 2;
        assert_true(which < 2 || (in == 10 && out == 20));
        count[which]++;
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabs((double)count[i] - 10000) < 4 * sqrt(30000 * 2. / 9));
    kvd_requests_release(&r);
}

TEST(test_recorded)
{
    static const struct {
        const char *file;
        size_t n;
        double last;
    } known[] = {{"AzureLLMInferenceTrace_conv.csv", 19366, 3501.721937},
                 {"AzureLLMInferenceTrace_code.csv", 8819, 3435.948056},
                 {"mooncake_conversation_trace.jsonl", 12031, 3536.999},
                 {"mooncake_synthetic_trace.jsonl", 3993, 1022.025}};
    for (size_t i = 0; i < 4; i++) {
        char path[256];
        kvd_requests r;
        snprintf(path, sizeof path, "%s/%s", "shared/inputs/traces", known[i].file);
        if (access(path, R_OK))
            snprintf(path, sizeof path, "%s/%s", "../shared/inputs/traces", known[i].file);
        if (access(path, R_OK))
            skip();
        OK(kvd_requests_read(&r, path, &err));
        assert_int_equal(r.n, known[i].n);
        assert_true(fabs(r.request[r.n - 1].arrival - known[i].last) < 1e-6);
        kvd_requests_release(&r);
    }
}

TEST_MAIN(NULL, NULL)
