"""Many runs: grids, execution, tables, tests of significance."""
