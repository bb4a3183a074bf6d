# Error of the attention output per layer. csv: series, label, text (calibration or other), layer, attention_error
stats csv skip 1 using (note(strcol(1))) nooutput
on = ''
note_on(s) = (strstrt(on, '"'.s.'"') ? 0 : (on = on.' "'.s.'"', 1))
stats csv skip 1 using (note_on(strcol(2))) nooutput
n = words(names); m = words(on)
set key vertical maxrows ceil(n/3.0)
set xlabel 'layer'
set ylabel '||v - u|| / ||u||'
set yrange [0:*]
set xtics 1
stats csv skip 1 using 4 name 'L' nooutput
if (L_max > 24) { set xtics 4 }
set xrange [-0.3:L_max+0.3]
plot for [j=1:m] for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(on, j) && strcol(3) eq 'calibration' ? $4 : NaN):5 with linespoints lt i notitle, \
     for [j=1:m] for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(on, j) && strcol(3) eq 'other' ? $4 : NaN):5 with linespoints lt i dt 2 notitle, \
     for [i=1:n] NaN with linespoints lt i title word(names, i)
