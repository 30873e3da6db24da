"""What a model might write, or be made to write, that a page must show and not obey.

Each tries to set `window.ran`, to fetch from BEACON, to leave its place in the document, or to hide what it says.
"""

RUN = "window.ran=1"

HOSTILE = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f'</script><script type=module>{RUN}</script><script id="data">',
    "</pre></details></article></section></main><h1 id=broken>out</h1>",
    f'<img src=BEACON/img onerror="{RUN}">',
    f'<svg onload="{RUN}"></svg><iframe src=BEACON/frame srcdoc="<script>parent.{RUN}</script>"></iframe>',
    "--></style></title><script src=BEACON/script></script>",
    "<meta http-equiv=refresh content='0;url=BEACON/refresh'><base href=BEACON/>",
    "<link rel=stylesheet href=BEACON/style><style>@import 'BEACON/import'; body{display:none}</style>",
    "{{ 7 * 7 }} {% raw %}{% endraw %} {# gone #} ${7 * 7} <%= 7 * 7 %> #{7*7}",
    f"' onmouseover='{RUN}' \" autofocus onfocus=\"{RUN}",
    "&lt;script&gt; &amp;nbsp; &#x3c;b&#x3e; &#0;",
    "\u202edetrever\u202c \u2066isolated\u2069 \u200bhidden\u200b \ufeff",
    "\x00nul \x07bell \x1b[31mred\r \x7f \x85",
    f"<![CDATA[ ]]> <!-- comment <!--<script>{RUN}</script>",
    f"javascript:{RUN}",
    "</textarea></noscript></template></form><plaintext>",
    "a" + "\u0301" * 2_000,
    "<b>" * 350_000,
    "\U000e0041\U000e0042 tags",
    f'"}}]}});{RUN};({{"groups":[{{"',
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e \\\\ \\",
    f"`${{{RUN}}}`",
    f"\u2028{RUN}\u2029",
    f'<math><mtext><table><mglyph><style><img src=x onerror="{RUN}">',
    f'<details open ontoggle="{RUN}"><summary>x</summary></details>',
    f'<a href="javascript:{RUN}">click</a><form action=BEACON/form><button formaction="javascript:{RUN}">',
    f'<object data="data:text/html,<script>parent.{RUN}</script>"><embed src=BEACON/embed>',
    '{"__proto__": {"polluted": true}} constructor toString',
    "\ud7ff\ue000\uffff \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    f"%3Cscript%3E{RUN}%3C/script%3E #completion=0000/x/0",
    f'<x onclick="{RUN}" id=list><x id=status><x id=data><input name=search>',
]
