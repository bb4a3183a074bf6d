# Error of the attention output per layer. csv: series, text (calibration or other), layer, attention_error
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
set key maxrows ceil(n/2.0)
set xlabel 'layer'
set ylabel '||v - u|| / ||u||'
set yrange [0:*]
set xtics 1
stats csv skip 1 using 3 name 'L' nooutput
if (L_max > 24) { set xtics 4 }
set xrange [-0.3:L_max+0.3]
plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq 'calibration' ? $3 : NaN):4 with linespoints lt i notitle, \
     for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq 'other' ? $3 : NaN):4 with linespoints lt i dt 2 notitle, \
     for [i=1:n] NaN with linespoints lt i title word(names, i)
