import torch, triton, sys, math, traceback
from vantage.kernels.gpu import hopper, operators
from vantage.kernels.tile_ranges import tile_ranges
from vantage.kernels.mask_flags import MaskFlags
from vantage.spec.positions import Positions
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
LOG2E=operators.LOG2E
def run(q,k,v,form=0,P0=None,P1=None,sinks=None,off=0,window=0,softcap=0.0,width=0,banks=0,stages=2,block=128,ranges=None,scale=None):
    B,H,T,D=q.shape; S=k.shape[2]; E=v.shape[3]
    out,lse=operators.empty_outputs(q,v)
    if ranges is None: ranges=rng(T,S,off,window,block,q.device, None if form in(0,2,3,6) else (0 if form==1 else width-1))
    blocks=triton.cdiv(T,block)
    scale=scale or D**-0.5
    u=operators.units([scale,softcap,1.0])
    z=lse
    with operators.on(q):
        hopper.attend[(blocks*B*H,)](q,k,v,out,lse,P0 if P0 is not None else z,P1 if P1 is not None else z,sinks if sinks is not None else z,ranges,
          *q.stride()[:3],*k.stride()[:3],*v.stride()[:3],*out.stride()[:3],*(operators.sink_strides(sinks) if sinks is not None else (0,0,0)),T,S,blocks,off,0,width,banks,window,0,0,*u,
          H=H,GROUP=H//k.shape[1],D=D,E=E,BLOCK=block,STAGES=stages,FORM=form,CAUSAL=True,WINDOW=window>0,CHUNK=False,PREFIX=False,SOFTCAP=softcap>0,HAS_SINKS=sinks is not None,num_warps=4)
    return out,lse
def rng(T,S,off,window,block,device,beyond):
    a=Positions.arange(1,T,off,device=device); b=Positions.arange(1,S,0,device=device)
    return tile_ranges(a.against(b),MaskFlags(causal=True,window=window),block,beyond).keys.contiguous()
def ref(q,k,v,form,P0,P1,sinks,off,window,softcap,table=None):
    G=k.shape[1]; H=q.shape[1]
    q,k,v=(x.double() for x in (q,k,v)); k=k.repeat_interleave(H//G,1); v=v.repeat_interleave(H//G,1)
    s=q@k.transpose(-1,-2)*q.shape[-1]**-0.5
    if softcap: s=softcap*torch.tanh(s/softcap)
    i=torch.arange(q.shape[2],device=q.device)[:,None]+off; j=torch.arange(k.shape[2],device=q.device)[None]
    d=(i-j)
    if form==1: s=s-P0.double()[None,:,None,None]*d.abs()
    if form==2: s=s-P0.double()[None,:,None,None]*torch.log1p(P1.double()[None,:,None,None]*d.abs())
    if form==4: s=s+table.double()[None][:,:,d.clamp(0,table.shape[1]-1)]
    if form==6: s=s+P0.double()[...,None]+P1.double()[:,:,None,:]
    see=(d>=0)
    if window: see=see&(d<window)
    s=s.masked_fill(~see,float('-inf'))
    lse=s.logsumexp(-1)
    if sinks is not None: lse=torch.logaddexp(lse,sinks.double()[None,:,None])
    w=torch.exp(s-lse[...,None]); w=torch.nan_to_num(w)
    return w@v,lse
def mk(B,H,G,T,S,D,dtype=torch.bfloat16):
    f=lambda h,n: torch.randn(B,n,h,D,device='cuda',dtype=dtype).transpose(1,2)
    return f(H,T),f(G,S),f(G,S)
def bank(values,block,off):
    from vantage.kernels.fused import _bank
    return _bank(values,0,off%block,block)
def case(name,B,H,G,T,S,D,form=0,window=0,softcap=0.0,sinks=False,dtype=torch.bfloat16,off=0,stages=2):
    try:
        torch.manual_seed(0)
        q,k,v=mk(B,H,G,T,S,D,dtype); P0=P1=table=None; width=banks=0
        if form==1: P0=torch.rand(H,device='cuda')/2
        if form==2: P0=torch.rand(H,device='cuda'); P1=torch.rand(H,device='cuda')
        if form==4: table=torch.randn(H,129,device='cuda'); P0=table; P1=bank(table,128,off); width=129; banks=P1.shape[1]
        if form==6: P0=torch.randn(B,H,T,device='cuda'); P1=torch.randn(B,H,S,device='cuda')
        sk=torch.randn(H,device='cuda') if sinks else None
        o,l=run(q,k,v,form,P0,P1,sk,off,window,softcap,width,banks,stages)
        torch.cuda.synchronize()
        ro,rl=ref(q,k,v,form,P0,P1,sk,off,window,softcap,table)
        print(f"{name:34s} out err {(o.double()-ro).abs().max():.2e} of {ro.abs().max():.2f}  lse err {(l.double()-rl).abs().nan_to_num(0).max():.2e}",flush=True)
    except Exception as e:
        print(name,'FAILED',type(e).__name__,str(e)[:400],flush=True)
def ms(f,n=20):
    for _ in range(3): f()
    ts=[]
    for _ in range(5):
        a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record(); [f() for _ in range(n)]; b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b)/n)
    return sorted(ts)[2]
if __name__=='__main__':
    case('plain small',1,2,2,256,256,128)
    case('odd',2,3,3,300,300,128)
    case('gqa',2,8,2,333,333,128)
    case('one query',1,4,4,1,77,128,off=76)
    case('chunk',1,4,2,200,713,128,off=513)
    case('d64',1,2,2,500,500,64)
    case('fp16',1,2,2,500,500,128,dtype=torch.float16)
    case('alibi',1,4,4,700,700,128,form=1)
    case('kerple',1,4,4,700,700,128,form=2)
    case('t5',1,4,4,700,700,128,form=4)
    case('t5 chunk',1,4,4,300,700,128,form=4,off=400)
    case('fox',2,4,4,700,700,128,form=6)
    case('softcap',1,4,4,700,700,128,softcap=5.0)
    case('sinks',1,4,4,700,700,128,sinks=True)
    case('window',1,4,4,1500,1500,128,window=200)
    case('3 stages',1,4,4,1500,1500,128,stages=3)
    for B,H,G,N,D in ((4,16,16,4096,128),(1,16,16,16384,128),(4,32,8,4096,128),(4,16,16,4096,64)):
        q,k,v=mk(B,H,G,N,N,D); fl=4*B*H*D*(N*(N+1)/2)
        def cud():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): return F.scaled_dot_product_attention(q,k,v,is_causal=True,enable_gqa=H!=G)
        t=ms(cud); base=fl/t/1e9; print(f"B{B} H{H}/{G} N{N} D{D} cudnn {base:.0f}",flush=True)
        for st in (2,3) if D==128 else (2,4):
            for form in (0,1,2,4,6):
                P0=P1=None; width=banks=0
                if form==1: P0=torch.rand(H,device='cuda')/2
                if form==2: P0=torch.rand(H,device='cuda'); P1=torch.rand(H,device='cuda')
                if form==4: P0=torch.randn(H,129,device='cuda'); P1=bank(P0,128,0); width=129; banks=P1.shape[1]
                if form==6: P0=torch.randn(B,H,N,device='cuda'); P1=torch.randn(B,H,N,device='cuda')
                try:
                    r=rng(N,N,0,0,128,'cuda',None if form in(0,2,6) else (0 if form==1 else width-1))
                    t=ms(lambda: run(q,k,v,form,P0,P1,width=width,banks=banks,stages=st,ranges=r)); print(f"  stages {st} form {form}: {t:.3f} ms {fl/t/1e9:.0f} TFLOP/s {fl/t/1e9/base:.2f}",flush=True)
                except Exception as e: print('  failed',st,form,type(e).__name__,str(e)[:200],flush=True)
            try:
                t=ms(lambda: run(q,k,v,softcap=20.0,stages=st,ranges=rng(N,N,0,0,128,'cuda',None))); print(f"  softcap {fl/t/1e9:.0f}",flush=True)
                r=rng(N,N,0,1024,128,'cuda',None); t=ms(lambda: run(q,k,v,window=1024,stages=st,ranges=r)); print(f"  window {t:.3f} ms",flush=True)
            except Exception as e: print('  failed',type(e).__name__,str(e)[:200],flush=True)
    q,k,v=mk(1,32,8,8192,32768,128); q=q[:,:,:8192]; off=32768-8192; fl=4*32*128*(8192*off+8192*8193/2)
    r=rng(8192,32768,off,0,128,'cuda',None); t=ms(lambda: run(q,k,v,off=off,ranges=r)); print(f"chunk 8192 behind {off}: {fl/t/1e9:.0f}",flush=True)
