# Cost of cutting heads. csv: series, pair, width, removed, mean, most, sum
stats csv skip 1 using (note(strcol(1).', '.strcol(2))) nooutput
n = words(names)
set xlabel 'share of the dimensions removed'
set ylabel 'sum of KL divergences, nats per token'
set logscale y
set format y '%g'
set key maxrows 4
ok = 0
stats csv skip 1 using ($7 > 0 ? count(0) : 0) nooutput
if (ok > 0) {
  plot for [i=1:n] csv skip 1 using (strcol(1).', '.strcol(2) eq word(names, i) && $7 > 0 ? $4 : NaN):7 with linespoints lt i title word(names, i)
} else {
  unset logscale
  set label 9 'no values to draw' at graph 0.5, graph 0.5 center
  plot [0:1] [0:1] NaN notitle
  unset label 9
}
