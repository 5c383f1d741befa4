"""``POST /delays/?data=a&expire=30000``: put an element into a delayed queue, and see when it came out."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from example.pages import page_or_json

from .forms import DelayForm
from .models import Delay
from .queue import offer


# Exempt: programs call it, without a session. A browser sends nothing by itself that would identify
# a caller here, so another site has nothing to abuse.
@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def endpoint(request: HttpRequest) -> HttpResponse:
    """Offer an element to the queue, or show what came out of it."""
    form = DelayForm()
    if request.method == "POST":
        form = DelayForm({**request.GET.dict(), **request.POST.dict()})
        # A browser asks for a page, curl for anything.
        types = ["application/json", "text/html"]
        is_browser = request.get_preferred_type(types) == "text/html"
        if form.is_valid():
            element = offer(form.cleaned_data["data"], form.cleaned_data["expire"])
            return (
                redirect("delays") if is_browser else JsonResponse(element, status=202)
            )
        if not is_browser:
            return JsonResponse({"errors": form.errors}, status=400)
    received = Delay.objects.all()[:50]
    return page_or_json(
        request,
        "delays/index.html",
        {"form": form, "delays": received},
        {"delays": [as_json(delay) for delay in received]},
    )


def as_json(delay: Delay) -> dict[str, object]:
    return {
        "id": delay.element_id,
        "data": delay.data,
        "asked_ms": delay.asked_ms,
        "actual_ms": delay.actual_ms,
        "late_ms": delay.late_ms,
    }
