"""Draw jobs over time, past and planned, as text, SVG in HTML, and PNG: `drumline gantt`."""
