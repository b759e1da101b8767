"""Tasks times seeds: planned, admitted, tried, verified, stored, resumed and graded again."""
