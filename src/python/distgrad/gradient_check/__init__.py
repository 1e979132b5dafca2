"""gradcheck does for N ranks what torch.autograd.gradcheck does for one process; docs/gradcheck.md
describes it. `distgrad.gradcheck` is api.gradcheck.

Rank 0 of the group leads: it decides what is probed, all ranks execute that and send the results,
and rank 0 judges.

    api            what is imported from outside; needs no torch until it is called
    leading        the check as rank 0 leads it, and as the others follow
    team           a group of the ranks' own, for plans and results, and the handling of ranks that
                   raise or hang
    waiting        the proof that ranks wait for each other for ever
    executor       one rank's end: runs the function forward and backward as a plan says
    subject        the function and its inputs: leaves, float64 copies, outputs
    nested         nested lists, tuples and dicts
    coordinates    the directions in which inputs are moved and cotangents given
    forward        the right map: the derivative of the forward, measured
    nearby_slopes  the derivative near inputs where the forward has kinks, ties or jumps
    detached       what a function takes out of autograd, held while its inputs are moved
    perturbation   moves values inside the function apart where they may tie
    backward       the measured map, and whether it is linear, repeatable and independent of the
                   memory layout
    blocks         both maps for one input and one output: blocks [to rank][from rank]
    formulas       a grid of blocks in words: x̄_r = Σ_k ȳ_k
    predicates     what is wrong with a grid: a table of pure functions
    conventions    which gradients are right: the objective, and which inputs are copies
    named          the check of FILE:FUNCTION before anything is started
    judging        from maps to findings
    report         the result, as data and as text
"""
