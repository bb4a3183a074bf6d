#include "evaluate/tasks/benchmark_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/tasks/benchmark.h"

static const char passages[] =
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question "
    "based on the given passages. Only give me the answer and do not output any other words.\n\n"
    "Question: {input}\nAnswer:";

static const kvd_benchmark_row longbench[] = {
    {"narrativeqa",
     "You are given a story, which can be either a novel or a movie script, and a question. Answer "
     "the question asconcisely as you can, using a single phrase if possible. Do not provide any "
     "explanation.\n\nStory: {context}\n\nNow, answer the question based on the story asconcisely "
     "as you can, using a single phrase if possible. Do not provide any explanation.\n\nQuestion: "
     "{input}\n\nAnswer:",
     128, KVD_METRIC_QA_F1, NULL},
    {"qasper",
     "You are given a scientific article and a question. Answer the question as concisely as you "
     "can, using a single phrase or sentence if possible. If the question cannot be answered based "
     "on the information in the article, write \"unanswerable\". If the question is a yes/no "
     "question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
     "Article: {context}\n\n Answer the question based on the above article as concisely as you "
     "can, using a single phrase or sentence if possible. If the question cannot be answered based "
     "on the information in the article, write \"unanswerable\". If the question is a yes/no "
     "question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
     "Question: {input}\n\nAnswer:",
     128, KVD_METRIC_QA_F1, NULL},
    {"multifieldqa_en",
     "Read the following text and answer briefly.\n\n{context}\n\nNow, answer "
     "the following question based on the above text, only give me the answer "
     "and do not output any other words.\n\nQuestion: {input}\nAnswer:",
     64, KVD_METRIC_QA_F1, NULL},
    {"hotpotqa", passages, 32, KVD_METRIC_QA_F1, NULL},
    {"2wikimqa", passages, 32, KVD_METRIC_QA_F1, NULL},
    {"musique", passages, 32, KVD_METRIC_QA_F1, NULL},
    {"gov_report",
     "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
     "Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
     512, KVD_METRIC_ROUGE_L, NULL},
    {"qmsum",
     "You are given a meeting transcript and a query containing a question or instruction. Answer "
     "the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based "
     "on the above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:",
     512, KVD_METRIC_ROUGE_L, NULL},
    {"multi_news",
     "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
     "{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
     512, KVD_METRIC_ROUGE_L, NULL},
    {"trec",
     "Please determine the type of the question below. Here are some examples "
     "of questions.\n\n{context}\n{input}",
     64, KVD_METRIC_CLASSIFICATION, "\n"},
    {"triviaqa",
     "Answer the question based on the given passage. Only give me the answer and do not output "
     "any other words. The following are some examples.\n\n{context}\n\n{input}",
     32, KVD_METRIC_QA_F1, "\n"},
    {"samsum",
     "Summarize the dialogue into a few short sentences. The following are some "
     "examples.\n\n{context}\n\n{input}",
     128, KVD_METRIC_ROUGE_L, "\n"},
    {"lsht", "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}", 64,
     KVD_METRIC_CLASSIFICATION, "\n"},
    {"passage_count",
     "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. "
     "Please carefully read these paragraphs and determine how many unique paragraphs there are "
     "after removing duplicates. In other words, how many non-repeating paragraphs are there in "
     "total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing "
     "duplicates. The output format should only contain the number, such as 1, 2, 3, and so on.\n\n"
     "The final answer is: ",
     32, KVD_METRIC_COUNT, NULL},
    {"passage_retrieval_en",
     "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which "
     "paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\n"
     "Please enter the number of the paragraph that the abstract is from. The answer format must "
     "be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: ",
     32, KVD_METRIC_RETRIEVAL, NULL},
    {"passage_retrieval_zh",
     "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n下面是一个摘要\n\n{input}\n"
     "\n请输入摘要所属段落的编号。答案格式必须是\"段落1\"，\"段落2\"等格式\n\n答案是：",
     32, KVD_METRIC_RETRIEVAL_ZH, NULL},
    {"lcc", "Please complete the code given below. \n{context}Next line of code:\n", 64,
     KVD_METRIC_CODE, NULL},
    {"repobench-p", "Please complete the code given below. \n{context}{input}Next line of code:\n",
     64, KVD_METRIC_CODE, NULL},
};

const kvd_benchmark_row kvd_longbench_v2_row = {
    "longbench-v2",
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n"
    "\nWhat is the correct answer to this question: {input}\nChoices:\n(A) {A}\n(B) {B}\n(C) {C}\n"
    "(D) {D}\n\nFormat your response as follows: \"The correct answer is (insert answer here)\".",
    128, KVD_METRIC_CHOICE, NULL};

/* GSM8K without solved examples; the whole prompt counts as the context, and no separate question
 * follows */
const kvd_benchmark_row kvd_gsm8k_row = {"gsm8k", "Question: {input}\n", 256, KVD_METRIC_NUMBER,
                                         "Question:"};

const kvd_benchmark_row kvd_gsm8k_cot_row = {"gsm8k", "{context}Q: {input}\n", 256,
                                             KVD_METRIC_NUMBER, "Q:"};

static const kvd_benchmark_row infinitebench[] = {
    {"passkey",
     "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
     "I will quiz you about the important information.\n\n{context}\n\n{input}\n\nThe pass key is",
     6, KVD_METRIC_FIRST_INTEGER, NULL},
    {"number_string",
     "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you "
     "about the important information there.\n\n{context}\n\n{input}\n\nThe sequence of digits is",
     12, KVD_METRIC_FIRST_INTEGER, NULL},
    {"kv_retrieval",
     "Extract the value corresponding to the specified key in the JSON object "
     "below.\n\n{context}\n\n{input}",
     50, KVD_METRIC_WORD, NULL},
    {"longbook_choice_eng",
     "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\n"
     "A. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe letter of the correct answer is",
     40, KVD_METRIC_LETTER, NULL},
    {"longbook_qa_eng",
     "Read the book and answer the question. Be very concise in your answer.\n"
     "\n{context}\n\nQuestion: {input}\nAnswer:",
     40, KVD_METRIC_QA_F1, NULL},
    {"longdialogue_qa_eng",
     "Below is a dialogue script where one random occurrence of a character name is replaced with "
     "\"$$MASK$$\", and you should try to guess who that character is.\n\n{context}\n\nThe name "
     "that has been replaced with $$MASK$$ is likely",
     40, KVD_METRIC_MATCH_PART, NULL},
    {"longbook_qa_chn", "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{input}\n答案：", 40,
     KVD_METRIC_CHARACTERS_F1, NULL},
    {"math_find", "{prefix}\n\n{context}\n\n{input}", 3, KVD_METRIC_FIRST_NUMBER, NULL},
    {"math_calc",
     "Let us calculate the intermediate values of an expression.\n\nExpression: "
     "1 + 3 + 4\nValues: [1, 4, 8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, "
     "5, 7, 3]\n\nExpression: {context}\nValues:",
     30000, KVD_METRIC_LEADING, NULL},
    {"code_run",
     "There is a function called {func} in the following Python code.\n\n{context}\n"
     "\nPlease compute the exact value of {func_call}. The value of {func_call} is",
     5, KVD_METRIC_LAST_INTEGER, NULL},
    {"code_debug",
     "Following is a Python code where exactly one of the functions/methods has a "
     "deliberate error that makes it crash.\n\n{context}\n\nOptions:\nA. {A}\nB. "
     "{B}\nC. {C}\nD. {D}\n\nThe correct option is:",
     5, KVD_METRIC_OPTION, NULL},
};

static const kvd_benchmark_row scbench[] = {
    {"scbench_kv",
     "Extract the value corresponding to the specified key in the JSON object "
     "below.\n\n{context}\n\n{input}",
     150, KVD_METRIC_MATCH_PART, NULL},
    {"scbench_prefix_suffix", "{context}\n\n{input}", 150, KVD_METRIC_MATCH_PART, NULL},
    {"scbench_choice_eng",
     "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\n"
     "A. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe the correct answer is",
     40, KVD_METRIC_LETTER, NULL},
    {"scbench_qa_eng",
     "Read the book and answer the question. Be very concise in your answer.\n"
     "\n{context}\n\nQuestion: {input}\nAnswer:",
     40, KVD_METRIC_MATCH_PART, NULL},
    {"scbench_vt", "{context}\n\n{input}", 30, KVD_METRIC_MATCH_ALL, NULL},
    {"scbench_many_shot", "{context}\n\n{input}", 10, KVD_METRIC_MATCH_PART, NULL},
};

static const char *const scbench_next[] = {
    "\n\n{input}",
    "\n\n{input}",
    ("\n\nQuestion: {input}\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe letter of "
     "the correct answer is"),
    "\n\nQuestion: {input}\nAnswer:",
    "\n\n{input}",
    "\n\n{input}",
};

/* metrics of RULER's tasks; a row applies to all tasks whose names begin with the row's name */
static const kvd_benchmark_row ruler[] = {
    {"niah", NULL, 128, KVD_METRIC_MATCH_ALL, NULL}, {"vt", NULL, 30, KVD_METRIC_MATCH_ALL, NULL},
    {"cwe", NULL, 120, KVD_METRIC_MATCH_ALL, NULL},  {"fwe", NULL, 50, KVD_METRIC_MATCH_ALL, NULL},
    {"qa", NULL, 32, KVD_METRIC_MATCH_PART, NULL},
};

static const kvd_benchmark_row *find(const kvd_benchmark_row *rows, size_t n, const char *task)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].task, task))
            return &rows[i];
    return NULL;
}

const kvd_benchmark_row *kvd_longbench_row(const char *task)
{
    return find(longbench, sizeof longbench / sizeof *longbench, task);
}

const kvd_benchmark_row *kvd_infinitebench_row(const char *task)
{
    return find(infinitebench, sizeof infinitebench / sizeof *infinitebench, task);
}

const kvd_benchmark_row *kvd_scbench_row(const char *task)
{
    return find(scbench, sizeof scbench / sizeof *scbench, task);
}

const char *kvd_scbench_next(const char *task)
{
    const kvd_benchmark_row *const row = kvd_scbench_row(task);
    return row ? scbench_next[row - scbench] : NULL;
}

const kvd_benchmark_row *kvd_ruler_row(const char *task)
{
    for (size_t i = 0; i < sizeof ruler / sizeof *ruler; i++)
        if (!strncmp(ruler[i].task, task, strlen(ruler[i].task)))
            return &ruler[i];
    return &ruler[0];
}

/* solved examples for GSM8K, as in lm_eval/tasks/gsm8k/gsm8k-cot.yaml of
 * github.com/EleutherAI/lm-evaluation-harness */
static const struct {
    const char *question, *answer;
} shots[KVD_GSM8K_SHOTS] = {
    {"There are 15 trees in the grove. Grove workers will plant trees in the grove today. After "
     "they are done, there will be 21 trees. How many trees did the grove workers plant today?",
     "There are 15 trees originally. Then there were 21 trees after some more were planted. So "
     "there must have been 21 - 15 = 6. The answer is 6."},
    {"If there are 3 cars in the parking lot and 2 more cars arrive, how many cars are in the "
     "parking lot?",
     "There are originally 3 cars. 2 more cars arrive. 3 + 2 = 5. The answer is 5."},
    {"Leah had 32 chocolates and her sister had 42. If they ate 35, how many pieces do they have "
     "left in total?",
     "Originally, Leah had 32 chocolates. Her sister had 42. So in total they had 32 + 42 = 74. "
     "After eating 35, they had 74 - 35 = 39. The answer is 39."},
    {"Jason had 20 lollipops. He gave Denny some lollipops. Now Jason has 12 lollipops. How many "
     "lollipops did Jason give to Denny?",
     "Jason started with 20 lollipops. Then he had 12 after giving some to Denny. So he gave "
     "Denny 20 - 12 = 8. The answer is 8."},
    {"Shawn has five toys. For Christmas, he got two toys each from his mom and dad. How many "
     "toys does he have now?",
     "Shawn started with 5 toys. If he got 2 toys each from his mom and dad, then that is 4 more "
     "toys. 5 + 4 = 9. The answer is 9."},
    {"There were nine computers in the server room. Five more computers were installed each day, "
     "from monday to thursday. How many computers are now in the server room?",
     "There were originally 9 computers. For each of 4 days, 5 more computers were added. So 5 * "
     "4 = 20 computers were added. 9 + 20 is 29. The answer is 29."},
    {"Michael had 58 golf balls. On tuesday, he lost 23 golf balls. On wednesday, he lost 2 more. "
     "How many golf balls did he have at the end of wednesday?",
     "Michael started with 58 golf balls. After losing 23 on tuesday, he had 58 - 23 = 35. After "
     "losing 2 more, he had 35 - 2 = 33 golf balls. The answer is 33."},
    {"Olivia has $23. She bought five bagels for $3 each. How much money does she have left?",
     "Olivia had 23 dollars. 5 bagels for 3 dollars each will be 5 x 3 = 15 dollars. So she has "
     "23 - 15 dollars left. 23 - 15 is 8. The answer is 8."},
};

char *kvd_gsm8k_shots(size_t n, kvd_err *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const f = open_memstream(&text, &size);
    for (size_t i = 0; f && i < n && i < KVD_GSM8K_SHOTS; i++)
        fprintf(f, "Q: %s\nA: %s\n\n", shots[i].question, shots[i].answer);
    if (!f || fclose(f)) {
        free(text);
        kvd_no_memory(err, "a prompt", size);
        return NULL;
    }
    return text;
}
