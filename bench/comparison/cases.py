"""What the comparison runs, and who runs it: a list of cases made from headwise_bench's shapes."""

PARTS = ("mha", "sdpa", "scores", "decode", "gemm", "rows", "layout", "memory")
INSIDE = ("headwise", "eigen", "openblas")  # whom headwise_bench itself plays
LENGTHS = (512, 1024, 2048, 4096, 8192)     # of the memory curve: (1, L, 512, 8)
SCORES = ("plain", "causal_bias", "padding_bias", "keep", "documents", "window", "alibi", "softcap",
          "dropout", "bias")
EIGEN_LENGTH = 4096                         # the longest whose weights of L x L are worth the memory


def request(family, values):
    return " ".join([family] + [str(value) for value in values])


def case(family, values, purpose, rivals=()):
    """rivals: {who: family}"""
    requests = {"headwise": request(family + "/f32", values)}
    requests.update({who: request(theirs, values) for who, theirs in dict(rivals).items()})
    return {"family": family, "values": list(values), "purpose": purpose, "requests": requests,
            "seconds": {}}


def shapes_of(about, options):
    """(B, L, D, H, G) and purpose of each."""
    if options.shapes:
        for text in options.shapes:
            values = [int(value) for value in text.split(",")]
            yield values + values[3:4] if len(values) == 4 else values, "asked"
        return
    for shape in about["shapes"]:
        if not options.quick or shape["values"][0] * shape["values"][1] <= 512:
            yield shape["values"], shape["purpose"]


def module_cases(values, purpose, has_torch):
    B, L, D, H, G = values
    in_series = (B, D, H, G) == (1, 512, 8, 8)
    for causal in (0, 1):
        for family in ("mha/forward", "mha/forward_backward"):
            both = family.endswith("backward")
            if purpose == "length" and not both:
                continue
            rivals = {}
            if has_torch and purpose != "ungrouped":
                rivals["torch"] = family + "/f32"
            small = purpose in ("small", "asked") or L <= 128
            if L <= EIGEN_LENGTH and (small or (in_series and both)):
                rivals["eigen"] = f"eigen_plain/{family}/f32"
            yield case(family, values + [causal], purpose, rivals)


def attention_cases(values, purpose):
    for causal in (0, 1):
        for family in ("sdpa/forward", "sdpa/backward"):
            if purpose == "long" and (causal == 0 or family != "sdpa/forward"):
                continue
            yield case(family, values + [causal], purpose)


def make(about, options, has_torch, against):
    """Every case, in the order of a round."""
    cases = []
    for values, purpose in shapes_of(about, options):
        if "mha" in options.parts and purpose != "long":
            cases += module_cases(values, purpose, has_torch)
        if "sdpa" in options.parts and purpose in ("standard", "long", "asked"):
            cases += attention_cases(values, purpose)
        if "layout" in options.parts and purpose == "standard" and 512 <= values[1] <= 2048:
            for layout in ("strided", "copied", "contiguous"):
                cases.append(case("heads/" + layout, values + [0], "layout"))
            for projection in ("fused", "three", "by_head"):
                cases.append(case("projection/" + projection, values + [0], "layout"))
    if "scores" in options.parts:
        values = [1, 2048, 128, 2, 2] if options.quick else [1, 2048, 768, 12, 12]
        for change in SCORES:
            rivals = {"torch": f"scores/{change}/f32"} if has_torch else {}
            cases.append(case("scores/" + change, values, "scores", rivals))
    if "decode" in options.parts:
        for values in about["decode"]:
            for family in ("decode/cache", "decode/by_head", "decode/by_token"):
                rivals = {"torch": family + "/f32"} if has_torch else {}
                cases.append(case(family, values, "decode", rivals))
    if "gemm" in options.parts:
        for product in about["products"]:
            rivals = {}
            if about["openblas"]:
                rivals["openblas"] = f"gemm_openblas/{product['name']}/f32"
            cases.append(case("gemm/" + product["name"], product["values"],
                              "large" if product["large"] else "other", rivals))
    if "rows" in options.parts:
        for values in about["rows"]:
            for family in ("layer_norm/forward", "layer_norm/forward_backward", "softmax/forward",
                           "softmax/forward_backward", "dropout/forward"):
                cases.append(case(family, values, "rows"))
    for name in against:
        for entry in cases:
            entry["requests"][name] = entry["requests"]["headwise"]
    return cases


def memory_cases(quick):
    """Values, and the partners whose memory is measured there."""
    for length in LENGTHS[:2] if quick else LENGTHS:
        who = ["headwise", "torch"] + (["eigen"] if length <= EIGEN_LENGTH else [])
        yield [1, length, 512, 8, 8, 0], who
