"""The paper's tables, beside what our own runs give: paper | ours | difference."""
