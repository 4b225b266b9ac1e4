"""The crash matrix: every probe point × every action × every stack, one small real system each."""
